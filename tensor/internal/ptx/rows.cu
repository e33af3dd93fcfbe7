// Functions of rows: a block of one warp or more for each.

#include "kernels.h"

// log_sum returns the greatest element of a row and the sum of exp(v - greatest). A NaN is in the sum.
template <class T> static __device__ void log_sum(const T *row, u64 cols, double *s, double *top, double *sum) {
	double t = -INFINITY;
	for (u64 j = threadIdx.x; j < cols; j += blockDim.x)
		t = fmax(t, (double)row[j]);
	*top = t = block_max(t, s);
	total<T> e;
	for (u64 j = threadIdx.x; j < cols; j += blockDim.x)
		e.add(exp((double)row[j] - t));
	*sum = block_sum(e.value(), s);
}

#define ROWS(i, rows) for (u64 i = blockIdx.x; i < (rows); i += gridDim.x)

#define SOFTMAX(T, t) \
	extern "C" __global__ void softmax_##t(T *dst, const T *x, u64 rows, u64 cols) { \
		__shared__ double s[33]; \
		ROWS(i, rows) { \
			double top, sum; \
			log_sum(x + i * cols, cols, s, &top, &sum); \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) \
				dst[i * cols + j] = (T)(exp((double)x[i * cols + j] - top) / sum); \
		} \
	}
FLOATS(SOFTMAX)

#define SOFTMAX_GRAD(T, t) \
	extern "C" __global__ void softmax_grad_##t(T *dst, const T *dy, const T *y, u64 rows, u64 cols) { \
		__shared__ double s[33]; \
		ROWS(i, rows) { \
			const T *g = dy + i * cols, *v = y + i * cols; \
			total<T> d; \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) \
				d.add((double)g[j] * (double)v[j]); \
			double dot = block_sum(d.value(), s); \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) \
				dst[i * cols + j] = (T)((double)v[j] * ((double)g[j] - dot)); \
		} \
	}
FLOATS(SOFTMAX_GRAD)

// argmax: one warp for each row; NaN is greater than everything, and of several the first counts.
#define ARGMAX(T, t) \
	extern "C" __global__ void argmax_##t(int *dst, const T *x, u64 rows, u64 cols) { \
		ROWS(i, rows) { \
			const T *row = x + i * cols; \
			T best = 0; \
			i64 at = -1; \
			for (i64 j = threadIdx.x; j < (i64)cols; j += 32) \
				if (at < 0 || row[j] > best || (row[j] != row[j] && best == best)) { \
					best = row[j]; \
					at = j; \
				} \
			for (int d = 16; d > 0; d /= 2) { \
				T v = __shfl_xor_sync(~0u, best, d); \
				i64 j = __shfl_xor_sync(~0u, at, d); \
				bool nan = v != v, bestnan = best != best; \
				bool same = nan && bestnan || v == best; \
				if (j >= 0 && (at < 0 || (same ? j < at : nan || (!bestnan && v > best)))) { \
					best = v; \
					at = j; \
				} \
			} \
			if (threadIdx.x == 0) \
				dst[i] = at < 0 ? 0 : (int)at; \
		} \
	}
FLOATS(ARGMAX)

// fault is kernel.Fault.
struct fault {
	int code, row, got, limit;
};

// cross_entropy: one block of 32 warps, each of which takes every 32nd row.
#define CROSS_ENTROPY(T, t) \
	extern "C" __global__ void cross_entropy_##t(T *loss, const T *logits, const int *labels, u64 rows, u64 cols, fault *f) { \
		__shared__ double s[32]; \
		__shared__ unsigned bad; \
		int warp = threadIdx.x / 32, lane = threadIdx.x % 32; \
		if (threadIdx.x == 0) \
			bad = ~0u; \
		__syncthreads(); \
		total<T> own; \
		for (u64 i = warp; i < rows; i += 32) { \
			int label = labels[i]; \
			if (label < 0 || label >= (i64)cols) { \
				if (lane == 0) \
					atomicMin(&bad, (unsigned)i); \
				own.add(NAN); \
				continue; \
			} \
			const T *row = logits + i * cols; \
			double top = -INFINITY; \
			total<T> part; \
			for (u64 j = lane; j < cols; j += 32) \
				top = fmax(top, (double)row[j]); \
			for (int d = 16; d > 0; d /= 2) \
				top = fmax(top, __shfl_xor_sync(~0u, top, d)); \
			for (u64 j = lane; j < cols; j += 32) \
				part.add(exp((double)row[j] - top)); \
			double e = part.value(); \
			for (int d = 16; d > 0; d /= 2) \
				e += __shfl_xor_sync(~0u, e, d); \
			own.add(top - (double)row[label] + log(e)); /* beside large logits the logarithm would be lost */ \
		} \
		double sum = own.value(); \
		if (lane == 0) \
			s[warp] = sum; \
		__syncthreads(); \
		if (threadIdx.x == 0) { \
			for (int w = 1; w < 32; w++) \
				sum += s[w]; \
			*loss = (T)(sum / (double)rows); \
			if (bad != ~0u && f->code == 0) { \
				f->row = (int)bad; \
				f->got = labels[bad]; \
				f->limit = (int)cols; \
				f->code = 1; \
			} \
		} \
	}
FLOATS(CROSS_ENTROPY)

#define CROSS_ENTROPY_GRAD(T, t) \
	extern "C" __global__ void cross_entropy_grad_##t(T *dst, const T *logits, const int *labels, const T *dloss, u64 rows, u64 cols) { \
		__shared__ double s[33]; \
		double scale = (double)*dloss / (double)rows; \
		ROWS(i, rows) { \
			int label = labels[i]; \
			bool wrong = label < 0 || label >= (i64)cols; \
			double top, sum; \
			log_sum(logits + i * cols, cols, s, &top, &sum); \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) { \
				double v = exp((double)logits[i * cols + j] - top) * (scale / sum) - (j == (u64)label ? scale : 0); \
				dst[i * cols + j] = wrong ? (T)0 : (T)v; \
			} \
		} \
	}
FLOATS(CROSS_ENTROPY_GRAD)
