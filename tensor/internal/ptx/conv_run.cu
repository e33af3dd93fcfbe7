// Convolutions with small windows, without stride and dilation. A thread computes a run of four
// results, one below the other, in eight channels. It uses each number that it reads for all of
// them, and neighbouring threads read neighbouring pixels.

#include "conv.h"

enum { down = 4, across = 8, kept = 16, part_channels = 64 };

// run is one product. With turned, the window is mirrored and the weights' first two dimensions are
// swapped, as in the gradient of x.
template <int window, bool turned>
static __device__ void run(float *y, const float *x, const float *w, const float *bias, const plan &d) {
	__shared__ __align__(16) float weights[kept][window * window][across];
	const int area = window * window, high = (int)((d.p + down - 1) / down), pixels = (int)(d.h * d.w);
	i64 tiles = (d.k + across - 1) / across, tile = blockIdx.y % tiles, g = blockIdx.y / tiles, k0 = tile * across;
	u64 all = (u64)(d.n * high * d.q);
	for (u64 base = blockIdx.x * (u64)blockDim.x; base < all; base += gridDim.x * (u64)blockDim.x) {
		u64 o = base + threadIdx.x, row = divide(o, d.q), image = divide(row, high);
		int p0 = (int)(row - image * high) * down, q = (int)(o - row * d.q), top = p0 - (int)d.ph, left = q - (int)d.pw;
		bool mine = o < all;
		// read[i] is where row i of the run's input begins. columns has a bit for each column that
		// is inside.
		unsigned columns = 0, rows = 0;
#pragma unroll
		for (int s = 0; s < window; s++)
			columns |= (unsigned)(mine && (unsigned)(left + s) < (unsigned)d.w) << s;
#pragma unroll
		for (int i = 0; i < down + window - 1; i++)
			rows |= (unsigned)((unsigned)(top + i) < (unsigned)d.h) << i;
		const float *from = x + (image * d.groups + g) * d.c * pixels + (i64)top * d.w + left;
		float sum[down][across], part[down][across];
#pragma unroll
		for (int i = 0; i < down; i++)
#pragma unroll
			for (int k = 0; k < across; k++)
				sum[i][k] = part[i][k] = 0;
		for (int c0 = 0; c0 < (int)d.c; c0 += kept) {
			int channels = min(kept, (int)d.c - c0);
			__syncthreads();
			for (int l = threadIdx.x; l < channels * area * across; l += blockDim.x) {
				int k = l % across, at = l / across % area, c = c0 + l / (across * area);
				i64 from = turned ? ((g * d.c + c) * d.k + k0 + k) * area + area - 1 - at : ((g * d.k + k0 + k) * d.c + c) * area + at;
				weights[l / (across * area)][at][k] = k0 + k < d.k ? w[from] : 0;
			}
			__syncthreads();
			for (int c = 0; c < channels; c++, from += pixels) {
				float v[down + window - 1][window];
#pragma unroll
				for (int i = 0; i < down + window - 1; i++)
#pragma unroll
					for (int s = 0; s < window; s++)
						v[i][s] = rows >> i & columns >> s & 1 ? from[i * (int)d.w + s] : 0;
#pragma unroll
				for (int r = 0; r < window; r++)
#pragma unroll
					for (int s = 0; s < window; s++) {
						several<float, 4> a = *(const several<float, 4> *)&weights[c][r * window + s][0], b = *(const several<float, 4> *)&weights[c][r * window + s][4];
#pragma unroll
						for (int i = 0; i < down; i++)
#pragma unroll
							for (int k = 0; k < across; k++)
								part[i][k] += v[i + r][s] * (k < 4 ? a.v[k % 4] : b.v[k % 4]);
					}
			}
			if ((c0 + kept) % part_channels == 0 || c0 + kept >= (int)d.c)
#pragma unroll
				for (int i = 0; i < down; i++)
#pragma unroll
					for (int k = 0; k < across; k++) {
						sum[i][k] += part[i][k];
						part[i][k] = 0;
					}
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
					to[k * places + i * d.q] = sum[i][k] + more;
		}
	}
}

#define RUN(window) \
	extern "C" __global__ void __launch_bounds__(128) conv_run_##window##_f32(float *y, const float *x, const float *w, const float *bias, plan d) { \
		run<window, false>(y, x, w, bias, d); \
	} \
	extern "C" __global__ void __launch_bounds__(128) \
	conv_input_grad_run_##window##_f32(float *dx, const float *dy, const float *w, const float *bias, plan d) { \
		run<window, true>(dx, dy, w, bias, d); \
	}
RUN(3)
RUN(5)

// The gradient of the weights of a window of 3 by 3. A block computes 16 by 16 channels, and
// iterates over tiles of 4 rows by 32 columns of positions. A thread has a row of these, four
// channels of y and one of x, and keeps the elements of x that it sees.
enum {
	channels = 16, tile_rows = 4, tile_cols = 32, area_x = (tile_rows + 2) * (tile_cols + 2), area_y = tile_rows * tile_cols, x_pitch = area_x + 1,
	y_pitch = area_y + 1, reads_x = (channels * area_x + 255) / 256, reads_y = channels * area_y / 256
};

// keep writes the values read at thread, thread + 256, …, n of them. Eight loads are in flight
// before the first is written.
template <int n, class R, class W> static __device__ void keep(R read, W write) {
#pragma unroll 1
	for (int from = 0; from < n; from += 8) {
		float v[8];
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = read(threadIdx.x + 256 * (from + i));
#pragma unroll
		for (int i = 0; i < 8; i++)
			write(threadIdx.x + 256 * (from + i), v[i]);
	}
}

extern "C" __global__ void __launch_bounds__(256, 2) conv_weight_grad_run_3_f32(float *dw, const float *dy, const float *x, u64 parts, plan d) {
	__shared__ float sx[channels][x_pitch], sy[channels][y_pitch];
	int slot = threadIdx.x / 64, c = threadIdx.x % 16, k = threadIdx.x % 64 / 16 * 4;
	u64 high = (d.p + tile_rows - 1) / tile_rows, wide = (d.q + tile_cols - 1) / tile_cols, tiles = d.n * high * wide;
	u64 down_c = (d.c + channels - 1) / channels, down_k = (d.k + channels - 1) / channels, jobs = down_c * down_k * d.groups * parts;
	for (u64 job = blockIdx.x; job < jobs; job += gridDim.x) {
		u64 rest = job;
		i64 c0 = rest % down_c * channels;
		rest /= down_c;
		i64 k0 = rest % down_k * channels;
		rest /= down_k;
		i64 g = rest % d.groups, part = rest / d.groups;
		int of_c = (int)(d.c - c0), of_k = (int)(d.k - k0);
		float sum[4][9];
#pragma unroll
		for (int i = 0; i < 36; i++)
			sum[i / 9][i % 9] = 0;
		for (u64 tile = part; tile < tiles; tile += parts) {
			u64 image = tile / (high * wide), place = tile % (high * wide);
			int p0 = (int)(place / wide) * tile_rows, q0 = (int)(place % wide) * tile_cols, cols = min((int)tile_cols, (int)d.q - q0);
			if (p0 + slot >= (int)d.p)
				// In a row outside of y, a 0 times an infinity of x would be NaN.
				cols = 0;
			const float *xs = x + ((image * d.groups + g) * d.c + c0) * d.h * d.w, *ys = dy + ((image * d.groups + g) * d.k + k0) * d.p * d.q;
			__syncthreads();
			keep<reads_x>(
				[&](int l) {
					int j = l % (tile_cols + 2), i = l / (tile_cols + 2) % (tile_rows + 2), b = l / area_x, h = p0 + i - (int)d.ph, v = q0 + j - (int)d.pw;
					bool there = b < min((int)channels, of_c) && (unsigned)h < (unsigned)d.h && (unsigned)v < (unsigned)d.w;
					return there ? xs[(b * (int)d.h + h) * (int)d.w + v] : 0;
				},
				[&](int l, float v) {
					if (l < channels * area_x)
						sx[l / area_x][l % area_x] = v;
				});
			keep<reads_y>(
				[&](int l) {
					int j = l % tile_cols, i = l / tile_cols % tile_rows, b = l / area_y;
					bool there = b < of_k && p0 + i < (int)d.p && q0 + j < (int)d.q;
					return there ? ys[(b * (int)d.p + p0 + i) * (int)d.q + q0 + j] : 0;
				},
				[&](int l, float v) { sy[l / area_y][l % area_y] = v; });
			__syncthreads();
			const float *from = &sx[c][slot * (tile_cols + 2)], *grad = &sy[k][slot * tile_cols];
			float v[3][3];
#pragma unroll
			for (int r = 0; r < 3; r++) {
				v[r][1] = from[r * (tile_cols + 2)];
				v[r][2] = from[r * (tile_cols + 2) + 1];
			}
#pragma unroll 4
			for (int j = 0; j < cols; j++) {
#pragma unroll
				for (int r = 0; r < 3; r++) {
					v[r][0] = v[r][1];
					v[r][1] = v[r][2];
					v[r][2] = from[r * (tile_cols + 2) + j + 2];
				}
#pragma unroll
				for (int i = 0; i < 4; i++) {
					float u = grad[i * y_pitch + j];
#pragma unroll
					for (int l = 0; l < 9; l++)
						sum[i][l] += u * v[l / 3][l % 3];
				}
			}
		}
		float *all = &sx[0][0];
		for (int turn = 0; turn < tile_rows; turn++) {
			__syncthreads();
			if (slot == turn)
#pragma unroll
				for (int i = 0; i < 36; i++) {
					float *at = all + i * 64 + threadIdx.x % 64;
					*at = turn ? *at + sum[i / 9][i % 9] : sum[i / 9][i % 9];
				}
		}
		__syncthreads();
		for (int l = threadIdx.x; l < 36 * 64; l += 256) {
			int i = l / 64, u = l % 64;
			i64 to_k = k0 + u / 16 * 4 + i / 9, to_c = c0 + u % 16;
			if (to_k < d.k && to_c < d.c)
				dw[(((part * d.groups + g) * d.k + to_k) * d.c + to_c) * 9 + i % 9] = all[l];
		}
	}
}
