// Tiles of float in shared memory, and products of them by the threads of a block. There are 8
// threads down by a number of threads across, and each has a few rows and columns of the result in
// registers. The columns (and rows) of a thread are up to four neighbours, and as many further on;
// see spread. The lowest two bits of a lane's number select a row and a column, so that half a warp
// reads its four numbers at once.

#pragma once

#include "async.h"

// spread describes where the c columns of thread t are, for that many threads: from w t on, and
// after.
template <int c, int threads> struct spread {
	enum { w = c < 4 ? c : 4 };
	static __device__ unsigned after(unsigned i) { return i / w * w * threads + i % w; }
	static __device__ unsigned at(unsigned t, unsigned i) { return w * t + after(i); }
};

// corner is a thread's position among 8 by across.
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

// sheet is n rows of d numbers. The fours of a row are permuted by the row's number over w, so that
// threads that read the same four of every w-th row have no bank conflicts.
template <int n, int d, int w = 4> struct sheet {
	float at[n * d];

	// fill starts the copy of the tile from memory, whose rows are apart elements apart, by that
	// many threads. Elements after the last row and column become 0.
	template <int threads> __device__ void fill(const float *from, i64 apart, i64 last, i64 cols) {
		enum { fours = d / 4, rows = threads / fours };
		unsigned x = threadIdx.x % fours, y = threadIdx.x / fours;
		int left = (int)min(last, (i64)n) - (int)y, there = (int)max(min(cols - 4 * x, (i64)4), (i64)0);
		from += y * apart + 4 * x;
		float *to = at + y * d;
		if (apart % 4 == 0 && ((u64)from & 15) == 0) {
#pragma unroll
			for (int i = 0; i < n; i += rows, from += rows * apart)
				copy_four(to + i * d + (x ^ (y + i) / w % 8) * 4, from, i < left ? there : 0);
			return;
		}
#pragma unroll 2
		for (int i = 0; i < n; i += rows, from += rows * apart)
			for (int k = 0; k < 4; k++)
				copy_one(to + i * d + (x ^ (y + i) / w % 8) * 4 + k, from + k, i < left && k < there);
	}

	// place is where thread t's columns of row y + k begin; y is a multiple of 4. The columns after
	// its first w ones are 4 times the number of threads further on each.
	template <int v> __device__ float *place(unsigned y, unsigned k, unsigned t) { return at + y * d + (v * t / 4 ^ (y / w + k / w) % 8) * 4 + v * t % 4 + k * d; }

	// take reads a thread's columns of a row.
	template <int threads, int c> __device__ void take(float (&to)[c], unsigned y, unsigned k, unsigned t) {
		typedef spread<c, threads> s;
		const float *from = place<s::w>(y, k, t);
#pragma unroll
		for (int i = 0; i < c; i += s::w)
			*(typename vector<s::w>::type *)(to + i) = *(const typename vector<s::w>::type *)(from + s::after(i));
	}

	// put writes them.
	template <int threads, int c> __device__ void put(const float (&from)[c], unsigned y, unsigned k, unsigned t) {
		typedef spread<c, threads> s;
		float *to = place<s::w>(y, k, t);
#pragma unroll
		for (int i = 0; i < c; i += s::w)
			*(typename vector<s::w>::type *)(to + s::after(i)) = *(const typename vector<s::w>::type *)(from + i);
	}

	// four is the address of the x-th four of thread t's first row. The thread's other rows are
	// spread::after further down.
	__device__ const float *four(unsigned t, unsigned x) { return at + w * t * d + (x ^ t % 8) * 4; }
};

// meet adds to sum the products of rows of a and rows of b.
template <int across, int r, int c, int n, int m, int d, int v, int w>
static __device__ void meet(float (&sum)[r][c], sheet<n, d, v> &a, sheet<m, d, w> &b, const corner<across> &me) {
	typedef spread<r, 8> down;
	typedef spread<c, across> right;
	static_assert((int)down::w == v && (int)right::w == w, "rows of a thread are in one place of each four");
#pragma unroll (r * c < 64 ? 2 : 1)
	for (unsigned x = 0; x < d / 4; x++) {
		__align__(16) float u[r][4], t[4];
		const float *of_a = a.four(me.y, x), *of_b = b.four(me.x, x);
#pragma unroll
		for (int i = 0; i < r; i++)
			*(float4 *)u[i] = *(const float4 *)(of_a + down::after(i) * d);
#pragma unroll
		for (int j = 0; j < c; j++) {
			*(float4 *)t = *(const float4 *)(of_b + right::after(j) * d);
#pragma unroll
			for (int k = 0; k < 4; k++)
#pragma unroll
				for (int i = 0; i < r; i++) {
					int at = k % 2 ? r - 1 - i : i;
					sum[at][j] += u[at][k] * t[k];
				}
		}
	}
}

// add_row adds by times t to a row of sums, from the end if back is set. Each two of the sums are
// swapped: then the registers of a sum and of its number of t are in different banks, so that they
// are read at once.
template <int c> static __device__ void add_row(float (&sum)[c], float by, const float (&t)[c], bool back) {
#pragma unroll
	for (int j = 0; j < c; j++) {
		int at = back ? c - 1 - j : j;
		sum[at ^ 1] += by * t[at];
	}
}

// combine adds to sum the rows of b, starting at a row, each times its weight in w. See add_row for
// the order of the sums.
template <int across, int r, int c, int n, int m, int d, int e, int v, int u>
static __device__ void combine(float (&sum)[r][c], sheet<n, m, v> &w, sheet<e, d, u> &b, unsigned from, const corner<across> &me) {
	typedef spread<r, 8> down;
	static_assert((int)down::w == v, "rows of a thread are in one place of each four");
#pragma unroll (r * c < 64 ? 2 : 1)
	for (unsigned x = 0; x < m / 4; x++) {
		__align__(16) float weights[r][4];
		const float *of_w = w.four(me.y, x);
#pragma unroll
		for (int i = 0; i < r; i++)
			*(float4 *)weights[i] = *(const float4 *)(of_w + down::after(i) * m);
#pragma unroll
		for (int k = 0; k < 4; k++) {
			__align__(16) float t[c];
			b.template take<across>(t, from + 4 * x, k, me.x);
#pragma unroll
			for (int i = 0; i < r; i++)
				add_row(sum[i], weights[i][k], t, i % 2);
		}
	}
}

// combine_down is combine with w transposed.
template <int across, int r, int c, int n, int m, int d, int v, int u>
static __device__ void combine_down(float (&sum)[r][c], sheet<n, m, v> &w, sheet<n, d, u> &b, const corner<across> &me) {
#pragma unroll (r * c < 64 ? 2 : 1)
	for (unsigned y = 0; y < n; y += 4)
#pragma unroll
		for (int k = 0; k < 4; k++) {
			__align__(16) float s[r], t[c];
			w.template take<8>(s, y, k, me.y);
			b.template take<across>(t, y, k, me.x);
#pragma unroll
			for (int i = 0; i < r; i++)
				add_row(sum[i], s[i], t, i % 2);
		}
}

// rows_of writes a thread's rows and columns of the sums of combine to memory, or adds them to what
// other blocks of the launch have written there. All reads come before the first addition, so that
// the kernel waits for memory once.
template <int across, int r, int c> static __device__ void rows_of(float *to, i64 apart, i64 last, i64 cols, const float (&sum)[r][c], const corner<across> &me, bool onto) {
	typedef spread<c, across> s;
	typedef typename vector<s::w>::type type;
	bool wide = apart % 4 == 0 && ((u64)to & 15) == 0;
	__align__(16) float v[r][c] = {};
	auto each = [&](auto move) {
#pragma unroll
		for (int i = 0; i < r; i++) {
			i64 y = spread<r, 8>::at(me.y, i);
#pragma unroll
			for (int j = 0; j < c; j += s::w) {
				i64 x = s::at(me.x, j);
				float *at = to + y * apart + x;
				if (wide && y < last && x + s::w <= cols)
					move((type *)at, (type *)&v[i][j]);
				else
#pragma unroll
					for (int k = 0; k < s::w; k++)
						if (y < last && x + k < cols)
							move(at + k, &v[i][j + k]);
			}
		}
	};
	if (onto)
		each([](auto *at, auto *v) { *v = __ldcg(at); });
#pragma unroll
	for (int i = 0; i < r; i++)
#pragma unroll
		for (int j = 0; j < c; j++)
			v[i][j] += sum[i][j ^ 1];
	each([](auto *at, const auto *v) { *at = *v; });
}
