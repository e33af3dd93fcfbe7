// Sorts of rows, their extreme elements, and running sums. Elements are sorted by rank, then by
// position. All of these differ, so the sort is stable: first runs in shared memory, then merges in
// which each element finds its own position.

#include "rows.h"
#include "sort.h"

// ranked is an element of a row of doubles, with a rank that orders like the number but is an
// integer. That of a float is one word, with the rank above the position.
struct ranked {
	u64 rank, at;
	__device__ bool operator<(const ranked &o) const { return rank < o.rank || (rank == o.rank && at < o.at); }
};
template <class T> struct keys {
	typedef ranked type;
	static __device__ ranked none() { return {~0ull, ~0ull}; }
};
template <> struct keys<float> {
	typedef u64 type;
	static __device__ u64 none() { return ~0ull; }
};

// key_of has a rank that is greater for greater numbers, the same for both zeros, and the greatest
// for every NaN; or, descending, its complement.
static __device__ u64 key_of(float v, u64 at, u64 descending) {
	unsigned bits = __float_as_uint(v), rank = v != v ? ~0u : v < 0 ? ~bits : bits | 1u << 31;
	return (u64)(descending ? ~rank : rank) << 32 | at;
}
static __device__ ranked key_of(double v, u64 at, u64 descending) {
	u64 bits = (u64)__double_as_longlong(v), rank = v != v ? ~0ull : v < 0 ? ~bits : bits | 1ull << 63;
	return {descending ? ~rank : rank, at};
}
static __device__ int place_of(u64 key) { return (int)(unsigned)key; }
static __device__ int place_of(const ranked &key) { return (int)key.at; }

// SORT_RUNS is the kernel in which each block sorts a run of a row, with half as many threads as
// elements, and writes its first elements, each at most. load is the key of element j of the row
// in. Rows are consecutive in dst.
#define SORT_RUNS(name, T, From, load) \
	extern "C" __global__ void name(keys<T>::type *dst, const From *x, u64 descending, u64 each, rows r) { \
		__shared__ keys<T>::type list[run]; \
		u64 runs = (r.cols + run - 1) / run, kept = (runs - 1) * each + min(each, r.cols - (runs - 1) * run); \
		for (u64 b = blockIdx.x; b < r.n * runs; b += gridDim.x) { \
			u64 row = b / runs, from = b % runs * run; \
			const From *in = x + r.start(row); \
			int keep = kept_of_run(from, r.cols); \
			for (int k = threadIdx.x; k < keep; k += blockDim.x) { \
				u64 j = from + k; \
				list[k] = keys<T>::none(); \
				if (j < r.cols) \
					list[k] = load; \
			} \
			sort_run(list, keep); \
			for (int k = threadIdx.x; k < keep; k += blockDim.x) \
				if (k < each && from + k < r.cols) \
					dst[row * kept + from / run * each + k] = list[k]; \
			__syncthreads(); \
		} \
	}

// merge_ranked merges neighbouring runs of the given width in each row. take_ranked writes the
// positions of the first keep elements of each row.
#define SORTS(T, t) \
	SORT_RUNS(sort_rows_##t, T, T, key_of(in[j * r.inner], j, descending)) \
	SORT_RUNS(sort_ranked_##t, T, keys<T>::type, in[j]) \
	extern "C" __global__ void merge_ranked_##t(keys<T>::type *dst, const keys<T>::type *src, u64 n, u64 cols, u64 width) { \
		EACH(i, n) { \
			u64 row = divide(i, cols) * cols; \
			merge_run(dst + row, src + row, i - row, cols, width); \
		} \
	} \
	extern "C" __global__ void take_ranked_##t(int *dst, const keys<T>::type *src, u64 n, u64 keep, u64 cols, u64 inner) { \
		EACH(i, n) { \
			u64 o = i / (keep * inner), j = i / inner % keep; \
			dst[i] = place_of(src[(o * inner + i % inner) * cols + j]); \
		} \
	}
FLOATS(SORTS)

static __device__ u64 of_lane(u64 key, int d) { return __shfl_xor_sync(~0u, key, d); }
static __device__ ranked of_lane(const ranked &key, int d) { return {of_lane(key.rank, d), of_lane(key.at, d)}; }

template <class K> static __device__ K warp_first(K v) {
	for (int d = 16; d > 0; d /= 2) {
		K o = of_lane(v, d);
		if (o < v)
			v = o;
	}
	return v;
}

// block_first is the first of the keys of a block's threads, for each of them. s has 32 slots.
template <class K> static __device__ K block_first(K v, K *s, K none) {
	v = warp_first(v);
	if (blockDim.x == 32)
		return v;
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		s[threadIdx.x / 32] = v;
	__syncthreads();
	return warp_first(threadIdx.x % 32 < blockDim.x / 32 ? s[threadIdx.x % 32] : none);
}

// argmax and argmin: one block per row, or per part of it. The last block of a row compares the
// parts. NaN comes before everything, and of equal elements the first counts.
#define ARG_EXTREME(T, t, of, sign) \
	extern "C" __global__ void of##_##t(int *dst, const T *x, keys<T>::type *part, unsigned *tickets, u64 parts, rows r) { \
		__shared__ keys<T>::type s[32]; \
		const keys<T>::type none = keys<T>::none(); \
		for (u64 b = blockIdx.x; b < r.n * parts; b += gridDim.x) { \
			u64 i = divide(b, parts), p = b - i * parts; \
			const T *row = x + r.start(i); \
			keys<T>::type first = none; \
			for (u64 j = r.cols * p / parts + threadIdx.x; j < r.cols * (p + 1) / parts; j += blockDim.x) { \
				keys<T>::type v = key_of(sign row[j * r.inner], j, 1); \
				if (v < first) \
					first = v; \
			} \
			first = block_first(first, s, none); \
			if (parts > 1) { \
				if (threadIdx.x == 0) \
					part[b] = first; \
				if (!comes_last(tickets + i, parts)) \
					continue; \
				first = none; \
				for (u64 k = threadIdx.x; k < parts; k += blockDim.x) \
					if (part[i * parts + k] < first) \
						first = part[i * parts + k]; \
				first = block_first(first, s, none); \
			} \
			if (threadIdx.x == 0) \
				dst[i] = place_of(first); \
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
