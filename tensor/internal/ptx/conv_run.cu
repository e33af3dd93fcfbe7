// Convolutions with small windows, without dilation and with a stride of 1 or 2. A thread computes
// a run of four results, one below the other, in eight channels. It uses each number that it reads
// for all of them, and neighbouring threads read neighbouring pixels.

#include "conv.h"

enum { down = 4, across = 8, kept = 16, part_channels = 64 };

// keep writes the values read at thread, thread + threads, … below all. That many loads are in
// flight before the first is written.
template <int threads, int loads, int all, class R, class W> static __device__ void keep(R read, W write) {
#pragma unroll 1
	for (int from = threadIdx.x; from < all; from += loads * threads) {
		float v[loads];
#pragma unroll
		for (int i = 0; i < loads; i++)
			v[i] = from + threads * i < all ? read(from + threads * i) : 0;
#pragma unroll
		for (int i = 0; i < loads; i++)
			if (from + threads * i < all)
				write(from + threads * i, v[i]);
	}
}

// shared_weights are weights in shared memory, by the channel of x, the place in the window and the
// channel of y.
template <int area> struct shared_weights {
	__align__(16) float at[kept][area][across];

	// fill reads the weights of channels of x from c0 on, and of y from k0 on. In a gradient of x
	// the two are swapped, and mirrored turns the window around.
	template <bool swapped, bool mirrored> __device__ void fill(const float *w, const plan &d, i64 g, i64 k0, int c0) {
		__syncthreads();
		keep<128, 9, kept * area * across>(
			[&](int l) {
				int k = l % across, place = l / across % area, c = c0 + l / (across * area);
				i64 channel = swapped ? (g * d.c + c) * d.k + k0 + k : (g * d.k + k0 + k) * d.c + c;
				bool there = c < (int)d.c && k0 + k < d.k;
				return there ? w[channel * area + (mirrored ? area - 1 - place : place)] : 0;
			},
			[&](int l, float v) { at[l / (across * area)][l / across % area][l % across] = v; });
		__syncthreads();
	}

	// take reads a place's weights of a channel.
	__device__ void take(float (&to)[across], int c, int place) const {
#pragma unroll
		for (int k = 0; k < across; k += 4)
			*(several<float, 4> *)(to + k) = *(const several<float, 4> *)&at[c][place][k];
	}
};

// results are those of a thread. Each is a sum of parts, of part_channels channels each.
template <int rows, int cols> struct results {
	float sum[rows][cols], part[rows][cols];

	__device__ results() {
#pragma unroll
		for (int i = 0; i < rows * cols; i++)
			sum[i / cols][i % cols] = part[i / cols][i % cols] = 0;
	}

	__device__ void add() {
#pragma unroll
		for (int i = 0; i < rows * cols; i++) {
			sum[i / cols][i % cols] += part[i / cols][i % cols];
			part[i / cols][i % cols] = 0;
		}
	}
};

// run is one product. With turned, it is the gradient of x with a stride of 1: the window is
// mirrored, and the weights' first two dimensions are swapped.
template <int window, int stride, bool turned>
static __device__ void run(float *y, const float *x, const float *w, const float *bias, const plan &d) {
	enum { area = window * window, tall = (down - 1) * stride + window };
	__shared__ shared_weights<area> weights;
	const int high = (int)((d.p + down - 1) / down), pixels = (int)(d.h * d.w);
	i64 tiles = (d.k + across - 1) / across, tile = blockIdx.y % tiles, g = blockIdx.y / tiles, k0 = tile * across;
	u64 all = (u64)(d.n * high * d.q);
	for (u64 base = blockIdx.x * (u64)blockDim.x; base < all; base += gridDim.x * (u64)blockDim.x) {
		u64 o = base + threadIdx.x, row = divide(o, d.q), image = divide(row, high);
		int p0 = (int)(row - image * high) * down, q = (int)(o - row * d.q), top = p0 * stride - (int)d.ph, left = q * stride - (int)d.pw;
		bool mine = o < all;
		// columns and rows have a bit for each column and row of the run's input that is inside.
		unsigned columns = 0, rows = 0;
#pragma unroll
		for (int s = 0; s < window; s++)
			columns |= (unsigned)(mine && (unsigned)(left + s) < (unsigned)d.w) << s;
#pragma unroll
		for (int i = 0; i < tall; i++)
			rows |= (unsigned)((unsigned)(top + i) < (unsigned)d.h) << i;
		const float *from = x + (image * d.groups + g) * d.c * pixels + (i64)top * d.w + left;
		results<down, across> y_of;
		for (int c0 = 0; c0 < (int)d.c; c0 += kept) {
			int channels = min(kept, (int)d.c - c0);
			weights.template fill<turned, turned>(w, d, g, k0, c0);
			// The pixels of two channels are in flight at once.
#pragma unroll 2
			for (int c = 0; c < channels; c++, from += pixels) {
				float v[tall][window];
#pragma unroll
				for (int i = 0; i < tall; i++)
#pragma unroll
					for (int s = 0; s < window; s++)
						v[i][s] = rows >> i & columns >> s & 1 ? from[i * (int)d.w + s] : 0;
#pragma unroll
				for (int r = 0; r < window; r++)
#pragma unroll
					for (int s = 0; s < window; s++) {
						__align__(16) float own[across];
						weights.take(own, c, r * window + s);
#pragma unroll
						for (int i = 0; i < down; i++)
#pragma unroll
							for (int k = 0; k < across; k++)
								y_of.part[i][k] += v[i * stride + r][s] * own[k];
					}
			}
			if ((c0 + kept) % part_channels == 0 || c0 + kept >= (int)d.c)
				y_of.add();
		}
		if (!mine)
			continue;
		i64 places = d.p * d.q;
		float *to = y + ((image * d.groups + g) * d.k + k0) * places + p0 * d.q + q;
#pragma unroll
		for (int k = 0; k < across; k++) {
			if (k0 + k >= d.k)
				break;
			float more = bias ? bias[g * d.k + k0 + k] : 0;
#pragma unroll
			for (int i = 0; i < down; i++)
				if (p0 + i < d.p)
					to[k * places + i * d.q] = y_of.sum[i][k] + more;
		}
	}
}

// grad_by_2 is the gradient of x for a window of 3 by 3 and a stride of 2. d is the plan with x and
// y swapped: d.h and d.w are the size of dy, d.p and d.q that of dx. A thread computes four rows by
// two columns of pixels, the first of which is at an even position in the padded picture. A pixel
// at an even position takes rows 0 and 2 of the window, one at an odd position row 1. The same
// holds for columns.
static __device__ void grad_by_2(float *dx, const float *dy, const float *w, const float *bias, const plan &d) {
	__shared__ shared_weights<9> weights;
	const int high = (int)(d.p + d.ph + 3) / 4, wide = (int)(d.q + d.pw + 1) / 2, pixels = (int)(d.h * d.w);
	i64 tiles = (d.k + across - 1) / across, tile = blockIdx.y % tiles, g = blockIdx.y / tiles, k0 = tile * across;
	u64 all = (u64)(d.n * high * wide);
	for (u64 base = blockIdx.x * (u64)blockDim.x; base < all; base += gridDim.x * (u64)blockDim.x) {
		u64 o = base + threadIdx.x, row = divide(o, wide), image = divide(row, high);
		int top = (int)(row - image * high) * 2 - 1, left = (int)(o - row * wide) - 1;
		bool there[3][2];
#pragma unroll
		for (int i = 0; i < 6; i++)
			there[i / 2][i % 2] = o < all && (unsigned)(top + i / 2) < (unsigned)d.h && (unsigned)(left + i % 2) < (unsigned)d.w;
		const float *from = dy + (image * d.groups + g) * d.c * pixels + (i64)top * d.w + left;
		results<8, across> dx_of; // rows of two pixels
		for (int c0 = 0; c0 < (int)d.c; c0 += kept) {
			int channels = min(kept, (int)d.c - c0);
			weights.template fill<true, false>(w, d, g, k0, c0);
#pragma unroll 2
			for (int c = 0; c < channels; c++, from += pixels) {
				float v[3][2];
#pragma unroll
				for (int i = 0; i < 6; i++)
					v[i / 2][i % 2] = there[i / 2][i % 2] ? from[i / 2 * (int)d.w + i % 2] : 0;
#pragma unroll
				for (int r = 0; r < 3; r++)
#pragma unroll
					for (int s = 0; s < 3; s++) {
						__align__(16) float own[across];
						weights.take(own, c, r * 3 + s);
#pragma unroll
						for (int i = 0; i < 2; i++)
#pragma unroll
							for (int k = 0; k < across; k++)
								dx_of.part[(2 * i + r % 2) * 2 + s % 2][k] += v[i + (r < 2)][s < 2] * own[k];
					}
			}
			if ((c0 + kept) % part_channels == 0 || c0 + kept >= (int)d.c)
				dx_of.add();
		}
		if (o >= all)
			continue;
		int p0 = 2 * (top + 1) - (int)d.ph, q0 = 2 * (left + 1) - (int)d.pw;
		float *to = dx + ((image * d.groups + g) * d.k + k0) * d.p * d.q;
#pragma unroll
		for (int k = 0; k < across; k++, to += d.p * d.q) {
			if (k0 + k >= d.k)
				break;
			float more = bias ? bias[g * d.k + k0 + k] : 0;
#pragma unroll
			for (int i = 0; i < 8; i++) {
				int p = p0 + i / 2, q = q0 + i % 2;
				if ((unsigned)p < (unsigned)d.p && (unsigned)q < (unsigned)d.q)
					to[p * (int)d.q + q] = dx_of.sum[i][k] + more;
			}
		}
	}
}

#define RUN(edition, window, stride) \
	extern "C" __global__ void __launch_bounds__(128) conv_##edition##_f32(float *y, const float *x, const float *w, const float *bias, plan d) { \
		run<window, stride, false>(y, x, w, bias, d); \
	}
#define INPUT_GRAD(edition, window) \
	extern "C" __global__ void __launch_bounds__(128) \
	conv_input_grad_##edition##_f32(float *dx, const float *dy, const float *w, const float *bias, plan d) { \
		run<window, 1, true>(dx, dy, w, bias, d); \
	}
RUN(run_3, 3, 1)
RUN(run_5, 5, 1)
RUN(run_3_by_2, 3, 2)
INPUT_GRAD(run_3, 3)
INPUT_GRAD(run_5, 5)
extern "C" __global__ void __launch_bounds__(128) conv_input_grad_run_3_by_2_f32(float *dx, const float *dy, const float *w, const float *bias, plan d) {
	grad_by_2(dx, dy, w, bias, d);
}
