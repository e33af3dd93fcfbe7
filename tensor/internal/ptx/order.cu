// Sorts of rows, their extreme elements, and running sums. Elements are sorted by rank, then by
// position. All of these differ, so the sort is stable: first runs in shared memory, then merges in
// which each element finds its own position.

#include "rows.h"

// ranked is an element of a row, with a rank that orders like the number but is an integer.
struct ranked {
	u64 rank, at;
	__device__ bool before(const ranked &o) const { return rank < o.rank || (rank == o.rank && at < o.at); }
};

// rank_of is greater for greater numbers, the same for both zeros, and the greatest for every NaN.
static __device__ u64 rank_of(double v) {
	u64 bits = (u64)__double_as_longlong(v), first = 1ull << 63;
	return v != v ? ~0ull : v < 0 ? ~bits : bits | first;
}

enum { run = 2048 };

static __device__ void sort_run(ranked *list, int n) {
	for (int size = 2; size <= n; size *= 2)
		for (int step = size / 2; step > 0; step /= 2) {
			for (int k = threadIdx.x; k < n / 2; k += blockDim.x) {
				int a = k / step * 2 * step + k % step, b = a + step;
				ranked x = list[a], y = list[b];
				if (y.before(x) == ((a & size) == 0)) {
					list[a] = y;
					list[b] = x;
				}
			}
			__syncthreads();
		}
}

// SORT_RUNS is the kernel in which each block sorts a run of a row with a bitonic network, with half
// as many threads as elements, and writes its first elements, each at most. The network of a short
// run is no longer than its elements need. load is element j of the row in. Rows are consecutive in
// dst.
#define SORT_RUNS(name, T, load) \
	extern "C" __global__ void name(ranked *dst, const T *x, u64 descending, u64 each, rows r) { \
		__shared__ ranked list[run]; \
		u64 runs = (r.cols + run - 1) / run, kept = (runs - 1) * each + min(each, r.cols - (runs - 1) * run); \
		for (u64 b = blockIdx.x; b < r.n * runs; b += gridDim.x) { \
			u64 row = b / runs, from = b % runs * run; \
			const T *in = x + r.start(row); \
			int keep = run; \
			while (keep > 1 && from + keep / 2 >= r.cols) \
				keep /= 2; \
			for (int k = threadIdx.x; k < keep; k += blockDim.x) { \
				u64 j = from + k; \
				list[k] = {~0ull, ~0ull}; \
				if (j < r.cols) \
					list[k] = load; \
			} \
			__syncthreads(); \
			sort_run(list, keep); \
			for (int k = threadIdx.x; k < keep; k += blockDim.x) \
				if (k < each && from + k < r.cols) \
					dst[row * kept + from / run * each + k] = list[k]; \
			__syncthreads(); \
		} \
	}

static __device__ ranked ranked_of(double v, u64 at, u64 descending) {
	u64 rank = rank_of(v);
	return {descending ? ~rank : rank, at};
}
#define SORT_ROWS(T, t) SORT_RUNS(sort_rows_##t, T, ranked_of((double)in[j * r.inner], j, descending))
FLOATS(SORT_ROWS)
SORT_RUNS(sort_ranked, ranked, in[j])

// merge_ranked merges neighbouring runs of the given width in each row. The position of an element
// is its position in its own run plus the number of elements before it in the other.
extern "C" __global__ void merge_ranked(ranked *dst, const ranked *src, u64 n, u64 cols, u64 width) {
	EACH(i, n) {
		u64 row = i / cols * cols, j = i - row;
		u64 start = j / (2 * width) * 2 * width, middle = min(start + width, cols), end = min(middle + width, cols);
		const ranked *in = src + row;
		ranked own = in[j];
		u64 lo = j < middle ? middle : start, hi = j < middle ? end : middle, first = lo;
		while (lo < hi) {
			u64 half = lo + (hi - lo) / 2;
			if (in[half].before(own))
				lo = half + 1;
			else
				hi = half;
		}
		dst[row + (j < middle ? j : start + (j - middle)) + (lo - first)] = own;
	}
}

// take_ranked writes the positions of the first keep elements of each row.
extern "C" __global__ void take_ranked(int *dst, const ranked *src, u64 n, u64 keep, u64 cols, u64 inner) {
	EACH(i, n) {
		u64 o = i / (keep * inner), j = i / inner % keep;
		dst[i] = (int)src[(o * inner + i % inner) * cols + j].at;
	}
}

static __device__ ranked warp_first(ranked v) {
	for (int d = 16; d > 0; d /= 2) {
		ranked o = {__shfl_xor_sync(~0u, v.rank, d), __shfl_xor_sync(~0u, v.at, d)};
		if (o.before(v))
			v = o;
	}
	return v;
}

// block_first is the first of the elements of a block's threads, for each of them. s has 32 slots.
static __device__ ranked block_first(ranked v, ranked *s) {
	v = warp_first(v);
	if (blockDim.x == 32)
		return v;
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		s[threadIdx.x / 32] = v;
	__syncthreads();
	return warp_first(threadIdx.x % 32 < blockDim.x / 32 ? s[threadIdx.x % 32] : ranked{~0ull, ~0ull});
}

// argmax and argmin: one block per row, or per part of it. The last block of a row compares the
// parts. NaN comes before everything, and of several the first counts.
#define ARG_EXTREME(T, t, of, sign) \
	extern "C" __global__ void of##_##t(int *dst, const T *x, ranked *part, unsigned *tickets, u64 parts, rows r) { \
		__shared__ ranked s[32]; \
		for (u64 b = blockIdx.x; b < r.n * parts; b += gridDim.x) { \
			u64 i = divide(b, parts), p = b - i * parts; \
			const T *row = x + r.start(i); \
			ranked first = {~0ull, ~0ull}; \
			for (u64 j = r.cols * p / parts + threadIdx.x; j < r.cols * (p + 1) / parts; j += blockDim.x) { \
				ranked v = ranked_of(sign(double)row[j * r.inner], j, 1); \
				if (v.before(first)) \
					first = v; \
			} \
			first = block_first(first, s); \
			if (parts > 1) { \
				if (threadIdx.x == 0) \
					part[b] = first; \
				if (!comes_last(tickets + i, parts)) \
					continue; \
				first = {~0ull, ~0ull}; \
				for (u64 k = threadIdx.x; k < parts; k += blockDim.x) \
					if (part[i * parts + k].before(first)) \
						first = part[i * parts + k]; \
				first = block_first(first, s); \
			} \
			if (threadIdx.x == 0) \
				dst[i] = (int)first.at; \
		} \
	}
#define ARG_EXTREMES(T, t) ARG_EXTREME(T, t, argmax, +) ARG_EXTREME(T, t, argmin, -)
FLOATS(ARG_EXTREMES)

// part_sums computes the sum of each part of each row.
#define PART_SUMS(T, t) \
	extern "C" __global__ void part_sums_##t(double *sums, const T *x, u64 reverse, u64 parts, rows r) { \
		__shared__ double s[33]; \
		for (u64 b = blockIdx.x; b < r.n * parts; b += gridDim.x) { \
			u64 i = b / parts, p = b % parts; \
			total<T> own; \
			for (u64 j = r.cols * p / parts + threadIdx.x; j < r.cols * (p + 1) / parts; j += blockDim.x) \
				own.add((double)x[r.start(i) + (reverse ? r.cols - 1 - j : j) * r.inner]); \
			double sum = block_sum(own.value(), s); \
			if (threadIdx.x == 0) \
				sums[b] = sum; \
		} \
	}
FLOATS(PART_SUMS)

// cumsum: one block per row or, given their sums, per part of it. It adds as many elements at a
// time as it has threads: first those of each warp, then the sums of the warps before.
#define CUMSUM(T, t) \
	extern "C" __global__ void cumsum_##t(T *dst, const T *x, const double *sums, u64 reverse, u64 parts, rows r) { \
		__shared__ double s[33]; \
		int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32; \
		for (u64 b = blockIdx.x; b < r.n * parts; b += gridDim.x) { \
			u64 i = b / parts, p = b % parts, to = r.cols * (p + 1) / parts; \
			double before = 0; \
			for (u64 q = threadIdx.x; q < p; q += blockDim.x) \
				before += sums[b - p + q]; \
			before = block_sum(before, s); \
			__syncthreads(); \
			for (u64 from = r.cols * p / parts; from < to; from += blockDim.x) { \
				u64 j = from + threadIdx.x, k = r.start(i) + (reverse ? r.cols - 1 - j : j) * r.inner; \
				double v = j < to ? (double)x[k] : 0; \
				for (int d = 1; d < 32; d *= 2) { \
					double u = __shfl_up_sync(~0u, v, d); \
					if (lane >= d) \
						v += u; \
				} \
				if (lane == 31) \
					s[warp] = v; \
				__syncthreads(); \
				double own = before; \
				for (int w = 0; w < warps; w++) { \
					if (w < warp) \
						own += s[w]; \
					before += s[w]; \
				} \
				if (j < to) \
					dst[k] = (T)(own + v); \
				__syncthreads(); \
			} \
		} \
	}
FLOATS(CUMSUM)
