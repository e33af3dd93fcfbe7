// Products of small matrices of float, in one launch with the operations before and after them. A
// block of 8 warps has a tile of 32 by 32 results. The warps share the inner dimension, 8 steps of
// 64 each, and add their sums at the end, so that a tile has 256 threads even if a matrix has few
// of them. If there are few tiles and the inner dimension is long, blocks share it as well. The
// order of all sums depends only on the sizes.

#include "product.h"

enum { side = 32, stage = 64, pitch = 36, warps = 8, lanes = 32, room = side * side + 2 * side };

// pieces is a thread's part of a stage of a factor.
struct pieces {
	float4 v[2];
};

// For a factor along the inner dimension, a warp reads 64 bytes of each of 8 rows, which go to
// shared memory with two to a bank.
template <bool along> static __device__ pieces fetch(const matrix &a, u64 first, u64 k, u64 end) {
	int lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
	pieces p;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		u64 row = first + (along ? lane % 8 + warp % 4 * 8 : lane % 8 * 4);
		u64 at = k + (along ? (lane / 8 + warp / 4 * 4 + i * 8) * 4 : lane / 8 + warp * 4 + i * 32);
		i64 there = along ? (row < a.n ? (i64)end - (i64)at : 0) : (at < end ? (i64)a.n - (i64)row : 0);
		p.v[i] = four(a.at + (along ? row * a.ld + at : at * a.ld + row), there, a.vector);
	}
	return p;
}

template <bool along> static __device__ void put(float *s, const pieces &p) {
	int lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (!along) {
			*(float4 *)(s + (lane / 8 + warp * 4 + i * 32) * pitch + lane % 8 * 4) = p.v[i];
			continue;
		}
		float *to = s + (lane / 8 + warp / 4 * 4 + i * 8) * 4 * pitch + lane % 8 + warp % 4 * 8;
		to[0] = p.v[i].x;
		to[pitch] = p.v[i].y;
		to[2 * pitch] = p.v[i].z;
		to[3 * pitch] = p.v[i].w;
	}
}

// tile_of is a tile's products over [k, end). A thread has four results: row tid%32/4*4 + tid/64,
// and columns from tid%4*4 + tid/32%2*16 on. own is the sum of a row of the first factor, in each
// thread of the first warp.
template <bool along_a, bool along_b> static __device__ float4 tile_of(const matrix &a, u64 row, const matrix &b, u64 column, u64 k, u64 end, bool sums, double *own) {
	__shared__ __align__(16) float s[warps * side * side];
	__shared__ double rows[warps][side];
	float *sa = s, *sb = s + stage * pitch;
	int lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
	float4 acc[4][2] = {};
	double sum = 0;
	pieces pa = fetch<along_a>(a, row, k, end), pb = fetch<along_b>(b, column, k, end);
	for (; k < end; k += stage) {
		__syncthreads();
		put<along_a>(sa, pa);
		put<along_b>(sb, pb);
		__syncthreads();
		pa = fetch<along_a>(a, row, k + stage, end);
		pb = fetch<along_b>(b, column, k + stage, end);
		const float *x = sa + warp * 8 * pitch, *y = sb + warp * 8 * pitch;
		if (sums)
#pragma unroll
			for (int i = 0; i < 8; i++)
				sum += (double)x[i * pitch + lane];
#pragma unroll
		for (int i = 0; i < 8; i++) {
			float4 u = *(const float4 *)(x + i * pitch + lane / 4 * 4);
			float4 v[2] = {*(const float4 *)(y + i * pitch + lane % 4 * 4), *(const float4 *)(y + i * pitch + lane % 4 * 4 + 16)};
#pragma unroll
			for (int h = 0; h < 2; h++) {
				axpy(acc[0][h], u.x, v[h]);
				axpy(acc[1][h], u.y, v[h]);
				axpy(acc[2][h], u.z, v[h]);
				axpy(acc[3][h], u.w, v[h]);
			}
		}
	}
	__syncthreads();
	float4 *all = (float4 *)s;
#pragma unroll
	for (int i = 0; i < 8; i++)
		all[(warp * 8 + i) * lanes + lane] = acc[i / 2][i % 2];
	if (sums)
		rows[warp][lane] = sum;
	__syncthreads();
	float4 v = all[threadIdx.x];
#pragma unroll
	for (int w = 1; w < warps; w++)
		join(v, all[w * 8 * lanes + threadIdx.x]);
	*own = 0;
	if (sums && warp == 0)
		for (int w = 0; w < warps; w++)
			*own += rows[w][lane];
	return v;
}

// product_of: one block per tile and part of the inner dimension. The last block of a tile adds the
// parts that the others wrote to partial.
template <bool along_a, bool along_b> static __device__ void product_of(float *c, const matrix &a, const matrix &b, u64 inner, u64 parts, float *partial, unsigned *tickets, const then &t) {
	u64 across = (b.n + side - 1) / side, tiles = (a.n + side - 1) / side * across, steps = (inner + stage - 1) / stage;
	int warp = threadIdx.x / lanes, lane = threadIdx.x % lanes;
	for (u64 at = blockIdx.x; at < tiles * parts; at += gridDim.x) {
		u64 one = divide(at, parts), part = at - one * parts, row = divide(one, across) * side, column = (one - divide(one, across) * across) * side;
		bool sums = t.sums && column == 0;
		double own;
		float4 v = tile_of<along_a, along_b>(a, row, b, column, steps * part / parts * stage, min(inner, steps * (part + 1) / parts * stage), sums, &own);
		if (parts > 1) {
			float *left = partial + at * room;
			((float4 *)left)[threadIdx.x] = v;
			if (sums && warp == 0)
				((double *)(left + side * side))[lane] = own;
			if (!comes_last(tickets + one, parts))
				continue;
			left = partial + one * parts * room;
			v = ((float4 *)left)[threadIdx.x];
			own = sums && warp == 0 ? ((double *)(left + side * side))[lane] : 0;
			for (u64 p = 1; p < parts; p++) {
				left += room;
				join(v, ((float4 *)left)[threadIdx.x]);
				if (sums && warp == 0)
					own += ((double *)(left + side * side))[lane];
			}
		}
		if (sums && warp == 0 && row + lane < a.n)
			t.sums[row + lane] = (float)own;
		u64 i = row + lane / 4 * 4 + warp / 2, j = column + lane % 4 * 4 + warp % 2 * 16;
		if (i < a.n)
			finish(c, i, j, b.n, v, t.kept(i, j, b.n), t);
	}
}

// product_: the suffix states which factors are transposed. c begins at a multiple of 16 bytes.
#define PRODUCT(name, along_a, along_b) \
	extern "C" __global__ void __launch_bounds__(256) product_##name##_f32(float *c, const float *a, const float *b, const float *bias, float *sums, const float *keep, u64 m, u64 n, u64 k, \
		i64 vector_a, i64 vector_b, i64 relu, u64 parts, float *partial, unsigned *tickets) { \
		product_of<along_a, along_b>(c, {a, m, along_a ? k : m, vector_a != 0}, {b, n, along_b ? k : n, vector_b != 0}, k, parts, partial, tickets, {bias, relu != 0, sums, keep}); \
	}
PRODUCT(nn, true, false)
PRODUCT(nt, true, true)
PRODUCT(tn, false, false)
