// Clipping of gradients: one launch for many tensors. blockIdx.y is the tensor's number.

#include "kernels.h"

enum { max_tensors = 192 };

struct tensor {
	u64 x, n;
};

// norm_sort selects how the terms of a norm are computed and joined.
enum norm_sort { any_norm, one_norm, two_norm, count_norm, max_norm, min_norm };

static __device__ double norm_term(i64 sort, double p, double a) {
	switch (sort) {
	case two_norm:
		return a * a;
	case count_norm:
		return a == 0 ? 0 : 1;
	case any_norm:
		return pow(a, p);
	}
	return a;
}

static __device__ double norm_join(i64 sort, double a, double b) {
	switch (sort) {
	case max_norm:
		return a > b || a != a ? a : b; // NaN stays NaN
	case min_norm:
		return a < b || a != a ? a : b;
	}
	return a + b;
}

static __device__ double norm_none(i64 sort) { return sort == min_norm ? __longlong_as_double(0x7ff0000000000000ll) : 0; }

static __device__ double norm_root(i64 sort, double p, double sum) {
	return sort == two_norm ? sqrt(sum) : sort == any_norm ? pow(sum, 1 / p) : sum;
}

// warp_join joins v over the warp's lanes, for each of them.
static __device__ double warp_join(i64 sort, double v) {
	for (int d = 16; d > 0; d /= 2)
		v = norm_join(sort, v, __shfl_xor_sync(~0u, v, d));
	return v;
}

// block_join joins v over the block's threads, for the first thread. s has 32 slots.
static __device__ double block_join(i64 sort, double v, double *s) {
	v = warp_join(sort, v);
	if (threadIdx.x % 32 == 0)
		s[threadIdx.x / 32] = v;
	__syncthreads();
	if (threadIdx.x == 0)
		for (int w = 1; w < (int)(blockDim.x / 32); w++)
			v = norm_join(sort, v, s[w]);
	return v;
}

struct norm_tensors {
	u64 parts; // gridDim.x for each tensor
	i64 sort;
	double p;
	tensor at[max_tensors];
};

// norm_parts: each block joins the terms of its share of a tensor.
#define NORM_PARTS(T, t) \
	extern "C" __global__ void norm_parts_##t(norm_tensors q) { \
		__shared__ double s[32]; \
		const T *x = (const T *)q.at[blockIdx.y].x; \
		double own = norm_none(q.sort); \
		EACH(i, q.at[blockIdx.y].n) \
			own = norm_join(q.sort, own, norm_term(q.sort, q.p, fabs((double)x[i]))); \
		own = block_join(q.sort, own, s); \
		if (threadIdx.x == 0) \
			((double *)q.parts)[blockIdx.y * (u64)gridDim.x + blockIdx.x] = own; \
	}
FLOATS(NORM_PARTS)
NORM_PARTS(bfloat16, bf16)

// norm_total: one block, with a warp for each tensor that joins its parts to its norm. The total
// norm is also stored after the parts.
#define NORM_TOTAL(T, t) \
	extern "C" __global__ void norm_total_##t(T *total, double *parts, u64 tensors, u64 each, i64 sort, double p) { \
		__shared__ double s[32]; \
		double own = norm_none(sort); \
		for (u64 i = threadIdx.x / 32; i < tensors; i += blockDim.x / 32) { \
			double v = norm_none(sort); \
			for (u64 j = threadIdx.x % 32; j < each; j += 32) \
				v = norm_join(sort, v, parts[i * each + j]); \
			v = norm_root(sort, p, warp_join(sort, v)); \
			if (threadIdx.x % 32 == 0) \
				own = norm_join(sort, own, norm_term(sort, p, v)); \
		} \
		own = block_join(sort, own, s); \
		if (threadIdx.x == 0) { \
			own = norm_root(sort, p, own); \
			parts[tensors * each] = own; \
			*total = (T)own; \
		} \
	}
FLOATS(NORM_TOTAL)

struct clip_tensors {
	u64 norm;
	double most;
	tensor at[max_tensors];
};

// clip multiplies by most/(norm+1e-6), if that is less than 1, or NaN.
#define CLIP(T, t) \
	extern "C" __global__ void clip_##t(clip_tensors q) { \
		T *x = (T *)q.at[blockIdx.y].x; \
		double scale = q.most / (*(const double *)q.norm + 1e-6); \
		if (scale >= 1) \
			return; \
		sums<T>::type by = (sums<T>::type)scale; \
		EACH(i, q.at[blockIdx.y].n) \
			x[i] = (T)(x[i] * by); \
	}
FLOATS(CLIP)
CLIP(bfloat16, bf16)

struct bound_tensors {
	double most;
	tensor at[max_tensors];
};

#define BOUND(T, t) \
	extern "C" __global__ void bound_##t(bound_tensors q) { \
		typedef sums<T>::type W; \
		T *x = (T *)q.at[blockIdx.y].x; \
		W most = (W)q.most; \
		EACH(i, q.at[blockIdx.y].n) { \
			W v = x[i]; \
			x[i] = (T)(v > most ? most : v < -most ? -most : v); \
		} \
	}
FLOATS(BOUND)
BOUND(bfloat16, bf16)
