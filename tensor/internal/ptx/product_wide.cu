// Products of matrices of float that fill a GPU with tiles of 64 by 64 results, one per
// multiprocessor, in one launch with the operation after them. A thread has 8 by 8 results, so that
// it reads little for its multiplications. 64 threads have a tile, and four such slices share its
// inner dimension, 8 steps of 32 each, and add their sums at the end. If there are few tiles,
// blocks share the inner dimension as well. The order of all sums depends only on the sizes.

#include "product.h"

enum { side = 64, stage = 32, pitch = 68, slices = 4, threads = slices * side, steps = stage / slices, lanes = 32, room = side * side + 2 * side, factor = stage * pitch };

// turned is the position of a row in a step of shared memory. It avoids bank conflicts when a warp
// writes 32 steps of 4 rows.
static __device__ int turned(int row, int k) { return row ^ k / 8 % 4 * 4; }

// source is where a thread reads its two pieces of each stage of a factor, of four elements each.
// For a factor along the inner dimension, a warp reads all of the stage of 4 rows. exact: the
// number of elements is a multiple of four, which are read at a time.
template <bool along, bool exact> struct source {
	const float *at;
	u64 step, apart; // to the next stage, and to the second piece
	int k, row;      // the first piece's position in the stage and in the tile
	int there[2];    // the number of existing elements of each piece

	__device__ source(const matrix &m, u64 first, u64 from) {
		int lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
		row = along ? lane / 8 + warp * 4 : lane % 16 * 4;
		k = along ? lane % 8 * 4 : lane / 16 + warp * 2;
		at = m.at + (along ? (first + row) * m.ld + from + k : (from + k) * m.ld + first + row);
		step = along ? stage : stage * m.ld;
		apart = (along ? side / 2 : stage / 2) * m.ld;
#pragma unroll
		for (int i = 0; i < 2; i++) {
			u64 begin = first + row + (along ? i * side / 2 : 0);
			there[i] = begin < m.n ? (int)min(m.n - begin, (u64)4) : 0;
		}
	}

	// next reads a stage, of which left steps remain.
	__device__ void next(float4 *v, int left) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const float *x = at + i * apart;
			int n = along ? (there[i] > 0 ? left - k : 0) : (k + i * stage / 2 < left ? there[i] : 0);
			if (exact) {
				v[i] = n > 0 ? *(const float4 *)x : make_float4(0, 0, 0, 0);
				continue;
			}
			v[i].x = n > 0 ? x[0] : 0;
			v[i].y = n > 1 ? x[1] : 0;
			v[i].z = n > 2 ? x[2] : 0;
			v[i].w = n > 3 ? x[3] : 0;
		}
		at += step;
	}

	// put writes the stage to shared memory.
	__device__ void put(float *s, const float4 *v) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			if (!along) {
				*(float4 *)(s + (k + i * stage / 2) * pitch + turned(row, k + i * stage / 2)) = v[i];
				continue;
			}
			float *to = s + k * pitch + turned(row + i * side / 2, k);
			to[0] = v[i].x;
			to[pitch] = v[i].y;
			to[2 * pitch] = v[i].z;
			to[3 * pitch] = v[i].w;
		}
	}
};

// meeting is the block's shared memory: two stages of both factors, and sums of rows.
struct meeting {
	__align__(16) float s[4 * factor];
	double rows[slices][side];
};

// A thread has four rows from corner.row on and another four 16 below, and four columns from
// corner.column on and another four 32 further. The lanes are such that a quarter of a warp reads
// four positions of one factor and two of the other.
struct corner {
	int row, column;
	__device__ corner(int one) {
		row = one / lanes * 32 + (one / 16 % 2 * 2 + one % 2) * 4;
		column = one / 2 % 8 * 4;
	}
};

// place is the position of a thread's i-th four of the tile's results.
struct place {
	int row, column;
	__device__ place(int i) {
		corner c(threadIdx.x % side);
		int j = threadIdx.x / side + i % 2 * slices;
		row = c.row + i / 2 * 16 + j / 2;
		column = c.column + j % 2 * 32;
	}
};

// fuse adds a times b to a number. nvcc keeps the order of such statements.
static __device__ void fuse(float &to, float a, float b) {
#ifdef __CUDACC__
	asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(to) : "f"(a), "f"(b));
#else
	to = fmaf(a, b, to);
#endif
}

// factors is a thread's elements of a step of both factors.
struct factors {
	float4 u[2], v[2];
	__device__ void read(const float *x, const float *y) {
		u[0] = *(const float4 *)x;
		u[1] = *(const float4 *)(x + 16);
		v[0] = *(const float4 *)y;
		v[1] = *(const float4 *)(y + 32);
	}
	// Registers have two banks, from each of which a clock reads one. So most multiplications have a
	// factor of the one before, and each two of the results are swapped: then a result and its other
	// factor are in different banks.
	__device__ void multiply(float4 (*acc)[2]) const {
		const float of[8] = {u[0].x, u[0].y, u[0].z, u[0].w, u[1].x, u[1].y, u[1].z, u[1].w};
#pragma unroll
		for (int i = 0; i < 8; i++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				fuse(acc[i][h].y, of[i], v[h].x);
				fuse(acc[i][h].x, of[i], v[h].y);
				fuse(acc[i][h].w, of[i], v[h].z);
				fuse(acc[i][h].z, of[i], v[h].w);
			}
	}
};

// tile_of is a tile's products over [k, end), 16 per thread. own is the sum of a row of the first
// factor, in each of the first threads.
template <bool along_a, bool along_b, bool exact>
static __device__ void tile_of(float4 *results, meeting &m, const matrix &a, u64 row, const matrix &b, u64 column, u64 k, u64 end, bool sums, double *own) {
	int slice = threadIdx.x / side, one = threadIdx.x % side;
	float4 acc[8][2];
#pragma unroll
	for (int i = 0; i < 8; i++)
		acc[i][0] = acc[i][1] = make_float4(0, 0, 0, 0);
	double sum = 0;
	source<along_a, exact> of_a(a, row, k);
	source<along_b, exact> of_b(b, column, k);
	int left = (int)(end - k);
	float4 pa[2], pb[2];
	of_a.next(pa, left);
	of_b.next(pb, left);
	corner c(one);
	float *other = m.s + 2 * factor;
	const float *at = m.s + slice * steps * pitch;
	const float *x = at + turned(c.row, slice * steps), *y = at + factor + turned(c.column, slice * steps);
	at += turned(one, slice * steps);
	int there = 2 * factor; // from this stage to the other one
	__syncthreads();
	of_a.put(m.s, pa);
	of_b.put(m.s + factor, pb);
	if (left > stage) {
		of_a.next(pa, left - stage);
		of_b.next(pb, left - stage);
	}
	__syncthreads();
	factors f[2];
	f[0].read(x, y);
	for (;; left -= stage) {
#pragma unroll
		for (int i = 0; i < steps; i++) {
			// The elements of the next step arrive during the multiplications of this one. After the
			// barrier the next stage is complete, and there are no more reads of this one.
			if (i == steps - 1) {
				__syncthreads();
				x += there, y += there;
			}
			f[(i + 1) % 2].read(x + (i + 1) % steps * pitch, y + (i + 1) % steps * pitch);
			f[i % 2].multiply(acc);
			if (i == 0 && sums) {
				double r[steps];
#pragma unroll
				for (int j = 0; j < steps; j++)
					r[j] = (double)at[j * pitch];
				sum += ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
			}
			// Put the next stage, whose loads have been in flight for the length of a stage.
			if (i == 1 && left > stage) {
				of_a.put(other, pa);
				of_b.put(other + factor, pb);
				if (left > 2 * stage) {
					of_a.next(pa, left - 2 * stage);
					of_b.next(pb, left - 2 * stage);
				}
			}
		}
		if (left <= stage)
			break;
		at += there, other -= there, there = -there;
	}
	float4 *all = (float4 *)m.s;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		__syncthreads();
#pragma unroll
		for (int i = 0; i < 8; i++)
			all[(slice * 8 + i) * side + one] = acc[4 * half + i / 2][i % 2];
		if (sums && half == 0)
			m.rows[slice][one] = sum;
		__syncthreads();
#pragma unroll
		for (int j = 0; j < 2; j++) {
			float4 v = all[threadIdx.x + j * threads];
#pragma unroll
			for (int w = 1; w < slices; w++)
				join(v, all[w * 8 * side + threadIdx.x + j * threads]);
			results[half * 2 + j] = make_float4(v.y, v.x, v.w, v.z);
		}
	}
	*own = 0;
	if (sums && threadIdx.x < side)
		for (int w = 0; w < slices; w++)
			*own += m.rows[w][one];
}

// product_of: one block per tile and part of the inner dimension. The last block of a tile adds the
// parts that the others wrote to partial.
template <bool along_a, bool along_b, bool exact>
static __device__ void product_of(meeting &m, float *c, const matrix &a, const matrix &b, u64 inner, u64 parts, float *partial, unsigned *tickets, const then &t) {
	u64 across = (b.n + side - 1) / side, tiles = (a.n + side - 1) / side * across, stages = (inner + stage - 1) / stage;
	for (u64 at = blockIdx.x; at < tiles * parts; at += gridDim.x) {
		u64 tile = divide(at, parts), part = at - tile * parts, row = divide(tile, across) * side, column = (tile - divide(tile, across) * across) * side;
		bool sums = t.sums && column == 0, sums_here = sums && threadIdx.x < side;
		double own;
		float4 v[4];
		tile_of<along_a, along_b, exact>(v, m, a, row, b, column, stages * part / parts * stage, min(inner, stages * (part + 1) / parts * stage), sums, &own);
		if (parts > 1) {
			float *left = partial + at * room;
#pragma unroll
			for (int i = 0; i < 4; i++)
				((float4 *)left)[threadIdx.x + i * threads] = v[i];
			if (sums_here)
				((double *)(left + side * side))[threadIdx.x] = own;
			if (!comes_last(tickets + tile, parts))
				continue;
			left = partial + tile * parts * room;
#pragma unroll
			for (int i = 0; i < 4; i++)
				v[i] = ((float4 *)left)[threadIdx.x + i * threads];
			own = sums_here ? ((double *)(left + side * side))[threadIdx.x] : 0;
			for (u64 p = 1; p < parts; p++) {
				left += room;
#pragma unroll
				for (int i = 0; i < 4; i++)
					join(v[i], ((float4 *)left)[threadIdx.x + i * threads]);
				if (sums_here)
					own += ((double *)(left + side * side))[threadIdx.x];
			}
		}
		if (sums_here && row + threadIdx.x < a.n)
			t.sums[row + threadIdx.x] = (float)own;
		// All of keep is read first, because the result may be in the same memory.
		float4 kept[4];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			place here(i);
			kept[i] = row + here.row < a.n ? t.kept(row + here.row, column + here.column, b.n) : v[i];
		}
#pragma unroll
		for (int i = 0; i < 4; i++) {
			place here(i);
			if (row + here.row < a.n)
				finish(c, row + here.row, column + here.column, b.n, v[i], kept[i], t);
		}
	}
}

// product_wide_: the suffix states which factors are transposed. c begins at a multiple of 16
// bytes.
#define PRODUCT(name, along_a, along_b) \
	extern "C" __global__ void __launch_bounds__(256) product_wide_##name##_f32(float *c, const float *a, const float *b, const float *bias, float *sums, const float *keep, u64 m, u64 n, u64 k, \
		i64 vector_a, i64 vector_b, i64 relu, u64 parts, float *partial, unsigned *tickets) { \
		__shared__ meeting meet; \
		matrix of_a = {a, m, along_a ? k : m, true}, of_b = {b, n, along_b ? k : n, true}; \
		if (vector_a && vector_b) \
			product_of<along_a, along_b, true>(meet, c, of_a, of_b, k, parts, partial, tickets, {bias, relu != 0, sums, keep}); \
		else \
			product_of<along_a, along_b, false>(meet, c, of_a, of_b, k, parts, partial, tickets, {bias, relu != 0, sums, keep}); \
	}
PRODUCT(nn, true, false)
PRODUCT(nt, true, true)
PRODUCT(tn, false, false)
