// Sums and other statistics.

#include "kernels.h"

// reduction is kernel.Reduction: the kept dimensions and the summed ones, with their strides in x.
struct reduction {
	i64 kept, kept_dims[max_dims], kept_strides[max_dims];
	i64 summed, summed_dims[max_dims], summed_strides[max_dims];
};

// sum_rows: a block for each output, whose threads walk the summed elements.
#define SUM_ROWS(T, t) \
	extern "C" __global__ void sum_rows_##t(T *dst, const T *x, u64 outputs, u64 count, double divisor, reduction r) { \
		__shared__ double s[33]; \
		for (u64 o = blockIdx.x; o < outputs; o += gridDim.x) { \
			const T *from = x + offset(o, r.kept, r.kept_dims, r.kept_strides); \
			total<T> own; \
			for (u64 i = threadIdx.x; i < count; i += blockDim.x) \
				own.add(from[offset(i, r.summed, r.summed_dims, r.summed_strides)]); \
			double v = block_sum(own.value(), s); \
			if (threadIdx.x == 0) \
				dst[o] = (T)(v / divisor); \
		} \
	}
FLOATS(SUM_ROWS)

// sum_columns: 32 outputs for each block of 32 by 8 threads; a column of threads shares one.
#define SUM_COLUMNS(T, t) \
	extern "C" __global__ void sum_columns_##t(T *dst, const T *x, u64 outputs, u64 count, double divisor, reduction r) { \
		__shared__ double s[8][33]; \
		for (u64 first = blockIdx.x * (u64)32; first < outputs; first += gridDim.x * (u64)32) { \
			u64 o = first + threadIdx.x; \
			total<T> own; \
			if (o < outputs) { \
				const T *from = x + offset(o, r.kept, r.kept_dims, r.kept_strides); \
				for (u64 i = threadIdx.y; i < count; i += 8) \
					own.add(from[offset(i, r.summed, r.summed_dims, r.summed_strides)]); \
			} \
			double v = own.value(); \
			s[threadIdx.y][threadIdx.x] = v; \
			__syncthreads(); \
			if (threadIdx.y == 0 && o < outputs) { \
				for (int y = 1; y < 8; y++) \
					v += s[y][threadIdx.x]; \
				dst[o] = (T)(v / divisor); \
			} \
			__syncthreads(); \
		} \
	}
FLOATS(SUM_COLUMNS)

// Statistics, and their gradients: a block for each output, whose threads walk its elements. Of the gradients dst is laid out
// as x; nans makes NaNs equal.
#define GROUPS(o) for (u64 o = blockIdx.x; o < outputs; o += gridDim.x)
#define ELEMENTS(i, at) \
	for (u64 i = threadIdx.x, at; i < count && ((at = offset(i, r.summed, r.summed_dims, r.summed_strides)), true); i += blockDim.x)

template <class T> static __device__ double greatest(const T *from, u64 count, const reduction &r, double *s) {
	double top = -INFINITY;
	int nan = 0;
	ELEMENTS(i, at) {
		top = fmax(top, (double)from[at]);
		nan |= from[at] != from[at];
	}
	top = block_max(top, s);
	return __syncthreads_or(nan) ? NAN : top;
}

template <class T> static __device__ double mean_of(const T *from, u64 count, const reduction &r, double *s) {
	total<T> own;
	ELEMENTS(i, at)
		own.add(from[at]);
	return block_sum(own.value(), s) / (double)count;
}

#define STATISTIC(T, t) \
	extern "C" __global__ void amax_##t(T *dst, const T *x, u64 outputs, u64 count, double c, reduction r) { \
		__shared__ double s[33]; \
		GROUPS(o) { \
			double top = greatest(x + offset(o, r.kept, r.kept_dims, r.kept_strides), count, r, s); \
			if (threadIdx.x == 0) \
				dst[o] = (T)top; \
		} \
	} \
	extern "C" __global__ void logsumexp_##t(T *dst, const T *x, u64 outputs, u64 count, double c, reduction r) { \
		__shared__ double s[33]; \
		GROUPS(o) { \
			const T *from = x + offset(o, r.kept, r.kept_dims, r.kept_strides); \
			double top = greatest(from, count, r, s); \
			if (isinf(top)) \
				top = 0; \
			total<T> own; \
			ELEMENTS(i, at) \
				own.add(exp((double)from[at] - top)); \
			double sum = block_sum(own.value(), s); \
			if (threadIdx.x == 0) \
				dst[o] = (T)(top + log(sum)); \
		} \
	} \
	extern "C" __global__ void var_##t(T *dst, const T *x, u64 outputs, u64 count, double c, reduction r) { \
		__shared__ double s[33]; \
		GROUPS(o) { \
			const T *from = x + offset(o, r.kept, r.kept_dims, r.kept_strides); \
			double mean = mean_of(from, count, r, s); \
			total<T> own; \
			ELEMENTS(i, at) { \
				double d = (double)from[at] - mean; \
				own.add(d * d); \
			} \
			double sum = block_sum(own.value(), s); \
			if (threadIdx.x == 0) \
				dst[o] = (T)(sum / fmax(0., (double)count - c)); \
		} \
	}
FLOATS(STATISTIC)

#define STATISTIC_GRAD(T, t) \
	static __device__ void share_##t(T *dst, const T *dy, const T *x, const T *y, u64 outputs, u64 count, bool nans, const reduction &r) { \
		__shared__ double s[33]; \
		GROUPS(o) { \
			u64 base = offset(o, r.kept, r.kept_dims, r.kept_strides); \
			const T *from = x + base; \
			T top = y[o]; \
			bool nan = nans && top != top; \
			double own = 0; \
			ELEMENTS(i, at) \
				own += from[at] == top || (nan && from[at] != from[at]); \
			double n = block_sum(own, s); \
			T part = (T)((double)dy[o] / n), rest = n > 0 ? (T)0 : (T)NAN; \
			ELEMENTS(i, at) \
				dst[base + at] = from[at] == top || (nan && from[at] != from[at]) ? part : rest; \
		} \
	} \
	extern "C" __global__ void amax_grad_##t(T *dst, const T *dy, const T *x, const T *y, u64 outputs, u64 count, double c, reduction r) { \
		share_##t(dst, dy, x, y, outputs, count, false, r); \
	} \
	extern "C" __global__ void max_grad_##t(T *dst, const T *dy, const T *x, const T *y, u64 outputs, u64 count, double c, reduction r) { \
		share_##t(dst, dy, x, y, outputs, count, true, r); \
	} \
	extern "C" __global__ void logsumexp_grad_##t(T *dst, const T *dy, const T *x, const T *y, u64 outputs, u64 count, double c, reduction r) { \
		GROUPS(o) { \
			u64 base = offset(o, r.kept, r.kept_dims, r.kept_strides); \
			double d = dy[o], all = y[o]; \
			ELEMENTS(i, at) \
				dst[base + at] = (T)(d * exp((double)x[base + at] - all)); \
		} \
	} \
	extern "C" __global__ void var_grad_##t(T *dst, const T *dy, const T *x, const T *y, u64 outputs, u64 count, double c, reduction r) { \
		__shared__ double s[33]; \
		GROUPS(o) { \
			u64 base = offset(o, r.kept, r.kept_dims, r.kept_strides); \
			double mean = mean_of(x + base, count, r, s), scale = 2 / ((double)count - c) * (double)dy[o]; \
			ELEMENTS(i, at) \
				dst[base + at] = (T)(scale * ((double)x[base + at] - mean)); \
		} \
	}
FLOATS(STATISTIC_GRAD)
