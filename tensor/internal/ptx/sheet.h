// Tiles of float in shared memory, and products of them by the threads of a block: 8 threads down by so many across, of which each has a few rows and columns
// of the result in registers. The columns (and rows) of a thread are up to four that are neighbours, and as many further on: see spread. The two bits of a
// lane's number that are lowest pick a row and a column, such that half a warp reads its four numbers in one go.

#pragma once

#include "async.h"

// spread is where the c columns of thread t lie, of so many threads.
template <int c, int threads> struct spread {
	enum { w = c < 4 ? c : 4 };
	static __device__ unsigned at(unsigned t, unsigned i) { return i / w * w * threads + w * t + i % w; }
};

// corner is a thread's place among 8 by across.
template <int across> struct corner {
	unsigned y, x;
	__device__ corner() {
		unsigned lane = threadIdx.x % 32;
		y = threadIdx.x / 32 * (32 / across) + lane / (2 * across) * 2 + lane % 2;
		x = lane / 2 % across;
	}
};

template <int w> struct vector;
template <> struct vector<2> { typedef float2 type; };
template <> struct vector<4> { typedef float4 type; };

// sheet is n rows of d numbers. The fours of a row change places, such that threads that read the same place of each w-th row meet in no bank.
template <int n, int d, int w = 4> struct sheet {
	float at[n * d];

	__device__ float *of(unsigned y, unsigned x) { return at + y * d + (x / 4 ^ y / w % 8) * 4 + x % 4; }

	// fill begins to copy the tile of memory from on, whose rows lie so far apart; what is after the last row and column is 0.
	__device__ void fill(const float *from, i64 apart, i64 last, i64 cols) {
		bool wide = apart % 4 == 0 && ((u64)from & 15) == 0;
#pragma unroll 4
		for (unsigned i = threadIdx.x; i < n * d / 4; i += blockDim.x) {
			unsigned y = i / (d / 4), x = i % (d / 4) * 4;
			int there = y < last ? (int)max(min(cols - x, (i64)4), (i64)0) : 0;
			const float *source = there > 0 ? from + y * apart + x : from;
			float *to = of(y, x);
			if (wide)
				copy_four(to, source, there);
			else
				for (int k = 0; k < 4; k++)
					copy_one(to + k, k < there ? source + k : source, k < there);
		}
	}

	// take reads thread t's columns of a row.
	template <int threads, int c> __device__ void take(float (&to)[c], unsigned y, unsigned t) {
		typedef spread<c, threads> s;
#pragma unroll
		for (int i = 0; i < c; i += s::w)
			*(typename vector<s::w>::type *)(to + i) = *(const typename vector<s::w>::type *)of(y, s::at(t, i));
	}

	// put writes them.
	template <int threads, int c> __device__ void put(const float (&from)[c], unsigned y, unsigned t) {
		typedef spread<c, threads> s;
#pragma unroll
		for (int i = 0; i < c; i += s::w)
			*(typename vector<s::w>::type *)of(y, s::at(t, i)) = *(const typename vector<s::w>::type *)(from + i);
	}
};

// four reads four numbers of each of a thread's rows.
template <int threads, int r, class A> static __device__ void four(float (&to)[r][4], A &a, unsigned t, unsigned x) {
#pragma unroll
	for (int i = 0; i < r; i++)
		*(float4 *)to[i] = *(const float4 *)a.of(spread<r, threads>::at(t, i), x);
}

// meet adds to sum the products of rows of a and rows of b.
template <int across, int r, int c, int n, int m, int d, int v, int w>
static __device__ void meet(float (&sum)[r][c], sheet<n, d, v> &a, sheet<m, d, w> &b, const corner<across> &me) {
#pragma unroll 1
	for (unsigned x = 0; x < d; x += 4) {
		__align__(16) float left[r][4];
		four<8>(left, a, me.y, x);
#pragma unroll
		for (int j = 0; j < c; j++) {
			float4 right = *(const float4 *)b.of(spread<c, across>::at(me.x, j), x);
#pragma unroll
			for (int i = 0; i < r; i++) {
				sum[i][j] += left[i][0] * right.x;
				sum[i][j] += left[i][1] * right.y;
				sum[i][j] += left[i][2] * right.z;
				sum[i][j] += left[i][3] * right.w;
			}
		}
	}
}

template <int r, int c> static __device__ void outer(float (&sum)[r][c], const float (&left)[r], const float (&right)[c]) {
#pragma unroll
	for (int i = 0; i < r; i++)
#pragma unroll
		for (int j = 0; j < c; j++)
			sum[i][j] += left[i] * right[j];
}

// combine adds to sum the rows of b from a row on, each times its weight in w.
template <int across, int r, int c, int n, int m, int d, int e, int v, int u>
static __device__ void combine(float (&sum)[r][c], sheet<n, m, v> &w, sheet<e, d, u> &b, unsigned from, const corner<across> &me) {
#pragma unroll 1
	for (unsigned x = 0; x < m; x += 4) {
		__align__(16) float weights[r][4];
		four<8>(weights, w, me.y, x);
#pragma unroll
		for (int k = 0; k < 4; k++) {
			__align__(16) float left[r], right[c];
			b.template take<across>(right, from + x + k, me.x);
#pragma unroll
			for (int i = 0; i < r; i++)
				left[i] = weights[i][k];
			outer(sum, left, right);
		}
	}
}

// combine_down is combine with w transposed.
template <int across, int r, int c, int n, int m, int d, int v, int u>
static __device__ void combine_down(float (&sum)[r][c], sheet<n, m, v> &w, sheet<n, d, u> &b, const corner<across> &me) {
#pragma unroll 8
	for (unsigned y = 0; y < n; y++) {
		__align__(16) float left[r], right[c];
		w.template take<8>(left, y, me.y);
		b.template take<across>(right, y, me.x);
		outer(sum, left, right);
	}
}

// rows_of writes a thread's rows and columns of a result to memory, or adds them to what other blocks of the launch have written there.
template <int across, int r, int c> static __device__ void rows_of(float *to, i64 apart, i64 last, i64 cols, float (&v)[r][c], const corner<across> &me, bool onto) {
	typedef spread<c, across> s;
	bool wide = apart % 4 == 0 && ((u64)to & 15) == 0;
#pragma unroll
	for (int i = 0; i < r; i++) {
		i64 y = spread<r, 8>::at(me.y, i);
		if (y >= last)
			continue;
#pragma unroll
		for (int j = 0; j < c; j += s::w) {
			typedef typename vector<s::w>::type type;
			i64 x = s::at(me.x, j);
			float *at = to + y * apart + x;
			if (wide && x + s::w <= cols) {
				if (onto) {
					type was = __ldcg((const type *)at);
#pragma unroll
					for (int k = 0; k < s::w; k++)
						v[i][j + k] += ((const float *)&was)[k];
				}
				*(type *)at = *(const type *)&v[i][j];
			} else {
#pragma unroll
				for (int k = 0; k < s::w; k++)
					if (x + k < cols)
						at[k] = onto ? __ldcg(at + k) + v[i][j + k] : v[i][j + k];
			}
		}
	}
}
