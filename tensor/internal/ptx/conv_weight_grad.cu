// target compute_80
// Gradients of the weights of a convolution of float, with larger tiles than in conv.cu. They are
// sums over the positions of all images. A block computes a tile of them over a part of the
// positions. For windows of 3 by 3, the next positions are copied to shared memory while a thread
// uses others.
//
// Elements of x outside of the picture are 0. Channels after the last one are not copied: sums with
// them are undefined, and are not written.

#include "conv.h"
#include "async.h"

// job is the work of a block: the tile of weights from (row, column) on in group g, and its part of
// the positions.
struct job {
	int column, row, g, part;
	__device__ job(unsigned at, unsigned across, unsigned down, unsigned groups, int columns, int rows) {
		column = at % across * columns;
		at /= across;
		row = at % down * rows;
		at /= down;
		g = at % groups;
		part = at / groups;
	}
};

// tile is an edition for windows of 3 by 3 without dilation. A block has 16 channels of x, and four
// times own channels of y. Its threads form four slots, each with all of these channels: a thread
// has own channels of y and one of x. A slot iterates over units of rows by cols positions, and has
// buffers for two.
//
// A thread keeps the last columns of x of a row for the next positions. So a row begins with
// skipped floats, and the columns after the first kept ones are aligned to 16 bytes. The distance
// of two channels is an odd multiple of four floats, so that four channels are read without bank
// conflicts.
template <int stride_, int own_, int rows_, int cols_> struct tile {
	enum {
		stride = stride_, own = own_, rows = rows_, cols = cols_, of_x = 16, across = 4, of_y = across * own,
		group = of_x * across, slots = 4, threads = slots * group, warps = group / 32,
		kept = 3 - stride, skipped = 4 - kept, x_rows = stride * (rows - 1) + 3, x_cols = stride * (cols - 1) + 3,
		x_pitch = (skipped + x_cols + 3) / 4 * 4, x_area = x_rows * x_pitch, x_channel = (x_area / 4 | 1) * 4,
		y_channel = (rows * cols / 4 | 1) * 4, buffer = of_x * x_channel + of_y * y_channel,
		sums = 9 * own, sums_pitch = group + 4, buffers_size = 2 * slots * buffer, sums_size = slots * sums * sums_pitch,
		bytes = 4 * (buffers_size > sums_size ? buffers_size : sums_size)
	};
};

// take reads n floats at an address that is aligned to as many of them as one instruction reads.
template <int n> static __device__ __forceinline__ void take(float *to, const float *from) {
	enum { w = n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1 };
#pragma unroll
	for (int i = 0; i < n; i += w) {
		several<float, w> v = *(const several<float, w> *)(from + i);
#pragma unroll
		for (int j = 0; j < w; j++)
			to[i + j] = v.v[j];
	}
}

// strip adds the products of n neighbouring positions. v has the last columns of x before them, and
// then those of them.
template <class T, int n>
static __device__ __forceinline__ void strip(float (&sum)[T::own][9], float (&v)[3][T::kept], const float *x, const float *y) {
	float all[3][T::kept + n * T::stride];
#pragma unroll
	for (int r = 0; r < 3; r++) {
#pragma unroll
		for (int i = 0; i < T::kept; i++)
			all[r][i] = v[r][i];
		take<n * T::stride>(&all[r][T::kept], x + r * T::x_pitch);
	}
#pragma unroll
	for (int b = 0; b < T::own; b++) {
		float u[n];
		take<n>(u, y + b * T::across * T::y_channel);
#pragma unroll
		for (int j = 0; j < n; j++)
#pragma unroll
			for (int l = 0; l < 9; l++)
				sum[b][l] += u[j] * all[l / 3][j * T::stride + l % 3];
	}
#pragma unroll
	for (int r = 0; r < 3; r++)
#pragma unroll
		for (int i = 0; i < T::kept; i++)
			v[r][i] = all[r][n * T::stride + i];
}

// unit is positions of an image, from (p0, q0) on. The unit after a slot's last one has no rows.
struct unit {
	int p0, q0, rows, cols;
	i64 image;
};

template <class T> static __device__ __forceinline__ void three_by_three(float *dw, const float *dy, const float *x, unsigned parts, const plan &d) {
	float *shared = (float *)dynamic_shared;
	const int slot = threadIdx.x / T::group, u = threadIdx.x % T::group, lane = u % 32, warp = u / 32, c = u % T::of_x, k = u / T::of_x;
	const int H = (int)d.h, W = (int)d.w, P = (int)d.p, Q = (int)d.q, groups = (int)d.groups;
	unsigned high = (P + T::rows - 1) / T::rows, wide = (Q + T::cols - 1) / T::cols, units = (unsigned)d.n * high * wide;
	unsigned across = (unsigned)(d.c + T::of_x - 1) / T::of_x, down = (unsigned)(d.k + T::of_y - 1) / T::of_y;
	int width = (Q + wide - 1) / wide;
	float *mine = shared + slot * 2 * T::buffer;
	for (unsigned number = blockIdx.x; number < across * down * groups * parts; number += gridDim.x) {
		job own(number, across, down, groups, T::of_x, T::of_y);
		int of_x = min((int)T::of_x, (int)d.c - own.column), of_y = min((int)T::of_y, (int)d.k - own.row);
		float sum[T::own][9];
#pragma unroll
		for (int i = 0; i < T::sums; i++)
			sum[i / 9][i % 9] = 0;
		unsigned all = parts * T::slots, at = own.part * T::slots + slot;
		unsigned from = (u64)units * at / all, to = (u64)units * (at + 1) / all, steps = (units + all - 1) / all;
		auto find = [&](unsigned l) {
			unsigned row = l / wide, image = row / high;
			int p0 = (row - image * high) * T::rows, q0 = (l - row * wide) * width;
			return unit{p0, q0, l < to ? min((int)T::rows, P - p0) : 0, min(width, Q - q0), image};
		};
		auto load = [&](const unit &next, float *buffer) {
			if (next.rows) {
				const float *xs = x + ((next.image * groups + own.g) * d.c + own.column + warp) * H * W;
				const float *ys = dy + ((next.image * groups + own.g) * d.k + own.row + warp) * P * Q;
#pragma unroll
				for (int first = 0; first < T::x_rows * T::x_cols; first += 32) {
					int e = first + lane, i = e / T::x_cols, j = e % T::x_cols;
					int h = next.p0 * T::stride + i - (int)d.ph, w = next.q0 * T::stride + j - (int)d.pw;
					bool inside = (unsigned)h < (unsigned)H && (unsigned)w < (unsigned)W;
					const float *s = inside ? xs + h * W + w : xs;
					float *t = buffer + warp * T::x_channel + i * T::x_pitch + j + T::skipped;
					if (e < T::x_rows * T::x_cols)
#pragma unroll 4
						for (int l = warp; l < of_x; l += T::warps, s += T::warps * H * W, t += T::warps * T::x_channel)
							copy_one(t, s, inside);
				}
#pragma unroll
				for (int first = 0; first < T::rows * T::cols; first += 32) {
					int e = first + lane, p = next.p0 + e / T::cols, q = next.q0 + e % T::cols;
					bool inside = p < P && q < Q;
					const float *s = inside ? ys + p * Q + q : ys;
					float *t = buffer + T::of_x * T::x_channel + warp * T::y_channel + e;
					if (e < T::rows * T::cols)
#pragma unroll 4
						for (int l = warp; l < of_y; l += T::warps, s += T::warps * P * Q, t += T::warps * T::y_channel)
							copy_one(t, s, inside);
				}
			}
			copies_end();
		};
		unit next = find(from);
		load(next, mine);
#pragma unroll 1
		for (unsigned step = 0; step < steps; step++) {
			copies_but<0>();
			__syncthreads();
			float *buffer = mine + (step & 1) * T::buffer;
			int rows = next.rows, cols = next.cols;
			next = find(from + step + 1);
			if (step + 1 < steps)
				load(next, mine + (step + 1 & 1) * T::buffer);
			const float *px = buffer + c * T::x_channel, *py = buffer + T::of_x * T::x_channel + k * T::y_channel;
#pragma unroll 1
			for (int row = 0; row < rows; row++, px += T::stride * T::x_pitch, py += T::cols) {
				float v[3][T::kept];
#pragma unroll
				for (int r = 0; r < 3; r++)
					take<T::kept>(v[r], px + r * T::x_pitch + T::skipped);
				const float *fx = px + 4, *fy = py;
#pragma unroll 1
				for (int j = cols >> 2; j; j--, fx += 4 * T::stride, fy += 4)
					strip<T, 4>(sum, v, fx, fy);
				if (cols & 2) {
					strip<T, 2>(sum, v, fx, fy);
					fx += 2 * T::stride;
					fy += 2;
				}
				if (cols & 1)
					strip<T, 1>(sum, v, fx, fy);
			}
		}
		__syncthreads();
#pragma unroll
		for (int i = 0; i < T::sums; i++)
			shared[(slot * T::sums + i) * T::sums_pitch + u] = sum[i / 9][i % 9];
		__syncthreads();
		for (int l = threadIdx.x; l < T::of_y * T::of_x * 9; l += T::threads) {
			int to_y = l / (T::of_x * 9), to_x = l / 9 % T::of_x, tap = l % 9;
			const float *s = shared + (to_y / T::across * 9 + tap) * T::sums_pitch + to_y % T::across * T::of_x + to_x;
			float v = 0;
#pragma unroll
			for (int i = 0; i < T::slots; i++)
				v += s[i * T::sums * T::sums_pitch];
			if (to_y < of_y && to_x < of_x)
				dw[(((i64)(own.part * groups + own.g) * d.k + own.row + to_y) * d.c + own.column + to_x) * 9 + tap] = v;
		}
		__syncthreads();
	}
}

// An edition's launches have that many bytes of dynamic shared memory.
#define THREE_BY_THREE(edition, stride, own, rows, cols, shared) \
	static_assert(tile<stride, own, rows, cols>::bytes == shared, "shared memory"); \
	extern "C" __global__ void __launch_bounds__(256, 2) conv_weight_grad_##edition##_f32(float *dw, const float *dy, const float *x, u64 parts, plan d) { \
		three_by_three<tile<stride, own, rows, cols>>(dw, dy, x, (unsigned)parts, d); \
	}
THREE_BY_THREE(3_few, 1, 4, 1, 32, 73728)
THREE_BY_THREE(3_8, 1, 8, 4, 8, 78336)
THREE_BY_THREE(3_16, 1, 8, 2, 16, 79872)
THREE_BY_THREE(3_32, 1, 8, 1, 32, 92160)
THREE_BY_THREE(3_by_2_8, 2, 8, 2, 8, 78336)
THREE_BY_THREE(3_by_2_16, 2, 8, 1, 16, 78336)

// conv_weight_grad_any is for any window with few elements in all channels of x. A block has 16 of
// these, and 32 channels of y. A warp iterates over units of 32 positions of its own, and a thread
// has two elements of the window by 8 channels of y.
enum { any_x = 16, any_y = 32, any_warps = 8, any_pitch = 36, any_unit = (any_x + any_y) * any_pitch, any_bytes = 4 * any_warps * any_unit };

struct element {
	i64 at;
	int h, w;
};

extern "C" __global__ void __launch_bounds__(256, 2) conv_weight_grad_any_f32(float *dw, const float *dy, const float *x, u64 parts, plan d) {
	static_assert(any_bytes == 55296, "shared memory");
	float *shared = (float *)dynamic_shared;
	__shared__ __align__(16) element elements[any_x];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, jl = lane % 8, kl = lane / 8;
	const int H = (int)d.h, W = (int)d.w, Q = (int)d.q, groups = (int)d.groups, inner = (int)(d.c * d.r * d.s);
	unsigned across = (inner + any_x - 1) / any_x, down = (unsigned)(d.k + any_y - 1) / any_y;
	unsigned places = (unsigned)(d.p * d.q), all = (unsigned)d.n * places, units = (all + 31) / 32;
	float *mine = shared + warp * any_unit;
	for (unsigned number = blockIdx.x; number < across * down * groups * (unsigned)parts; number += gridDim.x) {
		job own(number, across, down, groups, any_x, any_y);
		int of_x = min((int)any_x, inner - own.column), of_y = min((int)any_y, (int)d.k - own.row);
		if (threadIdx.x < any_x) {
			int j = own.column + threadIdx.x, window = (int)(d.r * d.s), at = j % window, h = at / (int)d.s * (int)d.dh, w = at % (int)d.s * (int)d.dw;
			elements[threadIdx.x] = element{(j / window * d.h + h) * d.w + w, h, w};
		}
		__syncthreads();
		float sum[2][8];
#pragma unroll
		for (int i = 0; i < 16; i++)
			sum[i / 8][i % 8] = 0;
		unsigned warps = (unsigned)parts * any_warps, at = own.part * any_warps + warp;
		unsigned from = (u64)units * at / warps, to = (u64)units * (at + 1) / warps;
#pragma unroll 1
		for (unsigned unit = from; unit < to; unit++) {
			unsigned o = unit * 32 + lane;
			bool there = o < all;
			o = there ? o : 0;
			unsigned image = o / places, place = o - image * places;
			int p = place / Q, q = place - p * Q, h = p * (int)d.sh - (int)d.ph, w = q * (int)d.sw - (int)d.pw;
			const float *xs = x + (image * d.groups + own.g) * d.c * H * W + (i64)h * W + w;
			const float *ys = dy + ((image * d.groups + own.g) * d.k + own.row) * places + place;
			float *t = mine + lane;
#pragma unroll 8
			for (int k = 0; k < of_y; k++, ys += places)
				copy_one(t + k * any_pitch, ys, there);
			t += any_y * any_pitch;
#pragma unroll 8
			for (int j = 0; j < of_x; j++) {
				element e = elements[j];
				bool inside = there && (unsigned)(h + e.h) < (unsigned)H && (unsigned)(w + e.w) < (unsigned)W;
				copy_one(t + j * any_pitch, inside ? xs + e.at : x, inside);
			}
			copies_end();
			copies_but<0>();
			__syncwarp();
			const float *py = mine + kl * any_pitch, *px = mine + (any_y + jl) * any_pitch;
#pragma unroll 2
			for (int l = 0; l < 32; l += 4) {
				several<float, 4> u[8];
#pragma unroll
				for (int b = 0; b < 8; b++)
					u[b] = *(const several<float, 4> *)(py + 4 * b * any_pitch + l);
#pragma unroll
				for (int a = 0; a < 2; a++) {
					several<float, 4> v = *(const several<float, 4> *)(px + 8 * a * any_pitch + l);
#pragma unroll
					for (int b = 0; b < 8; b++)
#pragma unroll
						for (int i = 0; i < 4; i++)
							sum[a][b] += u[b].v[i] * v.v[i];
				}
			}
			__syncwarp();
		}
		__syncthreads();
#pragma unroll
		for (int i = 0; i < 16; i++)
			shared[(warp * 16 + i) * any_pitch + lane] = sum[i / 8][i % 8];
		__syncthreads();
		for (int l = threadIdx.x; l < any_x * any_y; l += 256) {
			int to_y = l / any_x, to_x = l % any_x;
			const float *s = shared + (to_x / 8 * 8 + to_y / 4) * any_pitch + to_y % 4 * 8 + to_x % 8;
			float v = 0;
#pragma unroll
			for (int i = 0; i < any_warps; i++)
				v += s[i * 16 * any_pitch];
			if (to_y < of_y && to_x < of_x)
				dw[((i64)(own.part * groups + own.g) * d.k + own.row + to_y) * inner + own.column + to_x] = v;
		}
		__syncthreads();
	}
}
