// Draws from rows of logits, as plan.Categorical describes them, with one block per row. Weights
// are integers, so that sums do not depend on the order.

#include "random.h"

// key orders like the numbers. Zeros of both signs have the same key.
static __device__ u64 key(float v) {
	unsigned b = __float_as_uint(v + 0);
	return b ^ (b >> 31 ? ~0u : 1u << 31);
}
static __device__ u64 key(double v) {
	u64 b = (u64)__double_as_longlong(v + 0);
	return b ^ (b >> 63 ? ~0ull : 1ull << 63);
}

// scan returns the sum of v over the threads before this one, and sets *all to the sum over all
// threads. s has 33 slots.
static __device__ u64 scan(u64 v, u64 *s, u64 *all) {
	u64 upto = v, before = 0;
	for (int d = 1; d < 32; d *= 2) {
		u64 other = __shfl_up_sync(~0u, upto, d);
		if (threadIdx.x % 32 >= d)
			upto += other;
	}
	__syncthreads();
	if (threadIdx.x % 32 == 31)
		s[threadIdx.x / 32] = upto;
	__syncthreads();
	*all = 0;
	for (int w = 0; w < blockDim.x / 32; w++) {
		if (w == threadIdx.x / 32)
			before = *all;
		*all += s[w];
	}
	return before + upto - v;
}

// threshold is the greatest key for which the elements with at least this key weigh at least need
// together. It is found bit by bit. above is the weight of the elements whose bits so far are
// greater.
template <class T, class W> static __device__ u64 threshold(const T *row, u64 cols, W weigh, u64 need, u64 *s) {
	u64 least = 0, above = 0;
	for (int bit = 8 * sizeof(T) - 1; bit >= 0; bit--) {
		u64 with = least >> bit | 1, own = 0, sum;
		for (u64 j = threadIdx.x; j < cols; j += blockDim.x)
			if (key(row[j]) >> bit == with)
				own += weigh(row[j]);
		scan(own, s, &sum);
		if (above + sum >= need)
			least |= 1ull << bit;
		else
			above += sum;
	}
	return least;
}

struct choice {
	u64 cols, kept;
	double top_p, temperature, unit;
	source random;
};

// draw is called by all threads. The thread that finds the index sets *at.
template <class T> static __device__ void draw(int *at, const T *row, const choice &c, u64 number, double *d, u64 *s) {
	double most = -INFINITY;
	u64 nan = 0, total;
	for (u64 j = threadIdx.x; j < c.cols; j += blockDim.x) {
		most = fmax(most, (double)row[j]);
		nan += row[j] != row[j];
	}
	T top = (T)block_max(most, d);
	scan(nan, s, &total);
	if (total || top == -INFINITY) {
		if (threadIdx.x == 0)
			*at = -1;
		return;
	}
	u64 least = 0;
	auto weigh = [&](T v) {
		if (key(v) < least)
			return 0ull;
		if (v == top)
			return (u64)c.unit;
		return (u64)(exp(((double)v - (double)top) / c.temperature) * c.unit + 0.5);
	};
	if (c.kept < c.cols)
		least = threshold(row, c.cols, [](T) { return 1ull; }, c.kept, s);
	if (c.top_p < 1) {
		u64 own = 0;
		for (u64 j = threadIdx.x; j < c.cols; j += blockDim.x)
			own += weigh(row[j]);
		scan(own, s, &total);
		u64 need = (u64)ceil(c.top_p * (double)total);
		least = threshold(row, c.cols, weigh, max(1ull, min(total, need)), s);
	}
	// A thread's elements are adjacent, so that its sum and the sums before it are in the order of
	// the row.
	u64 part = (c.cols + blockDim.x - 1) / blockDim.x, own = 0;
	u64 from = min(c.cols, threadIdx.x * part), to = min(c.cols, from + part);
	for (u64 j = from; j < to; j++)
		own += weigh(row[j]);
	u64 before = scan(own, s, &total), target = c.temperature == 0 ? 0 : __umul64hi(number, total);
	if (target < before || target - before >= own)
		return;
	target -= before;
	for (u64 j = from; j < to; j++) {
		u64 w = weigh(row[j]);
		if (target < w) {
			*at = (int)j;
			return;
		}
		target -= w;
	}
}

#define CATEGORICAL(T, t) \
	extern "C" __global__ void __launch_bounds__(1024) categorical_##t(int *dst, const T *x, u64 n, choice c) { \
		__shared__ double d[33]; \
		__shared__ u64 s[33]; \
		for (u64 i = blockIdx.x; i < n; i += gridDim.x) { \
			ulonglong2 pair = numbers(c.random.words(i / 2)); \
			draw(dst + i, x + i * c.cols, c, i % 2 ? pair.y : pair.x, d, s); \
			__syncthreads(); \
		} \
	}
FLOATS(CATEGORICAL)
