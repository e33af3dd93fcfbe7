// Random numbers, and dropout, bit-identical to the host's. A thread computes the numbers of four
// words.

#include "random.h"
#include "sort.h"

#define DROPOUT(T, t) \
	extern "C" __global__ void dropout_##t(T *dst, const T *x, u64 n, u64 below, T scale, source s) { \
		EACH(i, (n + 3) / 4) { \
			uint4 r = s.words(i); \
			unsigned words[4] = {r.x, r.y, r.z, r.w}; \
			for (int j = 0; j < 4 && 4 * i + j < n; j++) \
				dst[4 * i + j] = x[4 * i + j] * (words[j] < below ? (T)0 : scale); \
		} \
	}
FLOATS(DROPOUT)

// fractions holds the count numbers in [0, 1) of type T that four words make.
template <class T> struct fractions {
	enum { count = 4 };
	double of[4];
	__device__ explicit fractions(uint4 r) : of{r.x * 0x1p-32, r.y * 0x1p-32, r.z * 0x1p-32, r.w * 0x1p-32} {}
};
template <> struct fractions<double> {
	enum { count = 2 };
	double of[2];
	__device__ explicit fractions(uint4 r) : of{(numbers(r).x >> 11) * 0x1p-53, (numbers(r).y >> 11) * 0x1p-53} {}
};

#define NOISE(T, t) \
	extern "C" __global__ void uniform_##t(T *dst, u64 n, double from, double scale, double limit, source s) { \
		typedef fractions<T> some; \
		EACH(i, (n + some::count - 1) / some::count) { \
			some f(s.words(i)); \
			for (int j = 0; j < some::count && some::count * i + j < n; j++) { \
				double v = __dadd_rn(from, __dmul_rn(scale, f.of[j])); \
				dst[some::count * i + j] = (T)(v < limit ? v : from); \
			} \
		} \
	} \
	extern "C" __global__ void normal_##t(T *dst, u64 n, double from, double scale, double, source s) { \
		typedef fractions<T> some; \
		EACH(i, (n + some::count - 1) / some::count) { \
			some f(s.words(i)); \
			for (int j = 0; j < some::count && some::count * i + j < n; j += 2) { \
				T *to = dst + some::count * i + j; \
				double radius = sqrt(-2 * log(1 - f.of[j])), sine, cosine; \
				sincospi(2 * f.of[j + 1], &sine, &cosine); \
				to[0] = (T)__dadd_rn(from, __dmul_rn(scale, __dmul_rn(radius, cosine))); \
				if (some::count * i + j + 1 < n) \
					to[1] = (T)__dadd_rn(from, __dmul_rn(scale, __dmul_rn(radius, sine))); \
			} \
		} \
	}
FLOATS(NOISE)

#define BERNOULLI(T, t) \
	extern "C" __global__ void bernoulli_##t(T *dst, const T *p, u64 n, source s) { \
		EACH(i, (n + 3) / 4) { \
			uint4 r = s.words(i); \
			unsigned words[4] = {r.x, r.y, r.z, r.w}; \
			for (int j = 0; j < 4 && 4 * i + j < n; j++) { \
				T v = p[4 * i + j]; \
				dst[4 * i + j] = v != v ? v : (T)(words[j] * 0x1p-32 < (double)v); \
			} \
		} \
	}
FLOATS(BERNOULLI)

// randperm: each block sorts a run of random numbers, which have their positions in the low bits.
extern "C" __global__ void randperm_8(u64 *order, u64 n, u64 low, source s) {
	__shared__ u64 keys[run];
	for (u64 from = blockIdx.x * (u64)run; from < n; from += gridDim.x * (u64)run) {
		int keep = kept_of_run(from, n);
		for (int k = threadIdx.x; k < keep; k += blockDim.x) {
			u64 i = from + k;
			ulonglong2 pair = numbers(s.words(i / 2));
			keys[k] = i < n ? (i % 2 ? pair.y : pair.x) & ~low | i : ~0ull;
		}
		sort_run(keys, keep);
		for (int k = threadIdx.x; k < keep; k += blockDim.x)
			if (from + k < n)
				order[from + k] = keys[k];
		__syncthreads();
	}
}

extern "C" __global__ void randperm_places_8(u64 *order, u64 n, u64 low) { EACH(i, n) order[i] &= low; }
