// Shared by the kernels of bfloat16. They compute in float, and add sums of eight to a double, so
// that a long sum loses nothing that rounding to bfloat16 would keep. A thread reads 16 bytes at a
// time if the memory is aligned.

#pragma once

#include "kernels.h"

struct __align__(16) eight { bfloat16 v[8]; };

// aligned reports whether all pointers are aligned for reading 16 bytes at a time.
static __device__ bool aligned(const void *a, const void *b = 0, const void *c = 0, const void *d = 0) {
	return (((u64)a | (u64)b | (u64)c | (u64)d) & 15) == 0;
}

// map sets dst[i] to f of the operands at i, for all i < n, by the threads of the grid.
template <class F> static __device__ void map(bfloat16 *dst, const bfloat16 *x, u64 n, F f) {
	u64 units = aligned(dst, x) ? n / 8 : 0;
	EACH(u, units) {
		eight a = ((const eight *)x)[u], r;
#pragma unroll
		for (int k = 0; k < 8; k++)
			r.v[k] = (bfloat16)f((float)a.v[k]);
		((eight *)dst)[u] = r;
	}
	EACH(i, n - 8 * units) dst[8 * units + i] = (bfloat16)f((float)x[8 * units + i]);
}

template <class F> static __device__ void map(bfloat16 *dst, const bfloat16 *x, const bfloat16 *y, u64 n, F f) {
	u64 units = aligned(dst, x, y) ? n / 8 : 0;
	EACH(u, units) {
		eight a = ((const eight *)x)[u], b = ((const eight *)y)[u], r;
#pragma unroll
		for (int k = 0; k < 8; k++)
			r.v[k] = (bfloat16)f((float)a.v[k], (float)b.v[k]);
		((eight *)dst)[u] = r;
	}
	EACH(i, n - 8 * units) dst[8 * units + i] = (bfloat16)f((float)x[8 * units + i], (float)y[8 * units + i]);
}

// walk calls f(j, row[j]) for a thread's share of the n elements of a row, which are apart elements
// apart: first, first + step, …, each of eight elements or of one. After each of these it calls
// after().
template <class F, class G> static __device__ void walk(const bfloat16 *row, u64 n, u64 apart, u64 first, u64 step, F f, G after) {
	if (apart == 1 && n % 8 == 0 && aligned(row)) {
		for (u64 u = first; u < n / 8; u += step) {
			eight a = ((const eight *)row)[u];
#pragma unroll
			for (int k = 0; k < 8; k++)
				f(8 * u + k, (float)a.v[k]);
			after();
		}
		return;
	}
	for (u64 j = first; j < n; j += step) {
		f(j, (float)row[j * apart]);
		after();
	}
}

// rewrite sets dst[j] to f(j, row[j]), in the order of walk.
template <class F> static __device__ void rewrite(bfloat16 *dst, const bfloat16 *row, u64 n, u64 apart, u64 first, u64 step, F f) {
	if (apart == 1 && n % 8 == 0 && aligned(row, dst)) {
		// Two loads are in flight at once.
		for (u64 u = first; u < n / 8; u += 2 * step) {
			u64 v = u + step < n / 8 ? u + step : u;
			eight a = ((const eight *)row)[u], b = ((const eight *)row)[v], r;
#pragma unroll
			for (int k = 0; k < 8; k++)
				r.v[k] = (bfloat16)f(8 * u + k, (float)a.v[k]);
			((eight *)dst)[u] = r;
			if (v == u)
				return;
#pragma unroll
			for (int k = 0; k < 8; k++)
				r.v[k] = (bfloat16)f(8 * v + k, (float)b.v[k]);
			((eight *)dst)[v] = r;
		}
		return;
	}
	for (u64 j = first; j < n; j += step)
		dst[j * apart] = (bfloat16)f(j, (float)row[j * apart]);
}
