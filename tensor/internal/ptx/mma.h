// Products of small matrices of bfloat16 by a warp, on GPUs of compute capability 8.0 and up. Lane
// 4 g + t of the warp has elements 2 t and 2 t + 1 of row g of an 8 by 8 matrix.

#pragma once

#include "async.h"
#include "bfloat16.h"

#ifdef __CUDACC__
// ldmatrix reads four matrices. Lane 8 i + r passes the address of row r of matrix i. The row's 16
// bytes must be aligned.
static __device__ void ldmatrix(unsigned (&to)[4], const bfloat16 *row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		: "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}

// ldmatrix_trans reads them transposed.
static __device__ void ldmatrix_trans(unsigned (&to)[4], const bfloat16 *row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		: "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}

// mma adds to d, 16 by 8, the product of a, 16 by 16, and b, 16 by 8. The quarters of a are in
// column-major order; b is transposed.
static __device__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// pair is two neighbours, rounded.
static __device__ unsigned pair(float low, float high) {
	unsigned both;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
	return both;
}
#else
static unsigned pair(float low, float high) { return bfloat16(low).bits | (unsigned)bfloat16(high).bits << 16; }
#endif

// rows is a tile of n rows in shared memory, with d elements each. The rows are laid out so that
// eight of them are in different banks.
template <int n, int d> struct rows {
	__align__(16) bfloat16 at[n][d + 8];

	// fill starts the copy of the tile from memory, whose rows are apart elements apart, by 2 n
	// threads. Elements after the last row and column become 0.
	__device__ void fill(const bfloat16 *from, i64 apart, i64 last, i64 cols) {
		enum { eights = d / 8, step = 2 * n / eights };
		int c = threadIdx.x % eights * 8, r = threadIdx.x / eights;
		int left = (int)max(min(last, (i64)n), (i64)0) - r, there = (int)min(cols, (i64)d) - c;
		from += r * apart + c;
		if (cols % 8 == 0 && apart % 8 == 0 && aligned(from)) {
#pragma unroll
			for (int i = 0; i < n; i += step, from += step * apart)
				copy_eight(&at[r + i][c], from, i < left && there > 0);
			return;
		}
#pragma unroll 1
		for (int i = 0; i < n; i += step, from += step * apart)
#pragma unroll 1
			for (int k = 0; k < 8; k++)
				at[r + i][c + k] = i < left && k < there ? from[k] : bfloat16(0.0f);
	}

	// left is 16 rows by 16 columns, as mma's first factor.
	__device__ void left(unsigned (&to)[4], int row, int col) const {
		int lane = threadIdx.x % 32;
		ldmatrix(to, &at[row + lane % 16][col + lane / 16 * 8]);
	}

	// right is 16 rows by 16 columns, transposed, as mma's second factor: to[0] and to[1] for the
	// first 8 rows.
	__device__ void right(unsigned (&to)[4], int row, int col) const {
		int lane = threadIdx.x % 32;
		ldmatrix(to, &at[row + lane / 16 * 8 + lane % 8][col + lane / 8 % 2 * 8]);
	}

	// upright is 16 rows by 16 columns as mma's second factor: to[0] and to[1] for the first 8
	// columns.
	__device__ void upright(unsigned (&to)[4], int row, int col) const {
		int lane = threadIdx.x % 32;
		ldmatrix_trans(to, &at[row + lane % 16][col + lane / 16 * 8]);
	}
};
