// Sums.

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
