// Normalisations of channels. Statistics are double: the mean of each channel, followed by 1 over
// the standard deviation of each.

#include "kernels.h"

#define ROWS(i, rows) for (u64 i = blockIdx.x; i < (rows); i += gridDim.x)

// element is element e of a channel of x [n, c, inner].
static __device__ u64 element(u64 e, u64 channel, u64 c, u64 inner) {
	u64 n = divide(e, inner);
	return (n * c + channel) * inner + e - n * inner;
}

// shift_of is a number near the mean of a channel, its first element, so that the variance is not a
// difference of large numbers.
template <class T> static __device__ double shift_of(const T *x, u64 channel, u64 inner) {
	double v = (double)x[channel * inner];
	return isfinite(v) ? v : 0;
}

// parts_of sums a channel's pairs of parts, for each thread of a block. s has 33 slots.
static __device__ void parts_of(const double *partial, u64 parts, double *first, double *second, double *s) {
	total<double> a, b;
	for (u64 p = threadIdx.x; p < parts; p += blockDim.x) {
		a.add(partial[2 * p]);
		b.add(partial[2 * p + 1]);
	}
	*first = block_sum(a.value(), s);
	*second = block_sum(b.value(), s);
}

// CHANNEL iterates over elements [from, to) of a channel, with four loads of a thread in flight at
// once. read and use take number k at position i[k].
#define CHANNEL(from, to, read, use) \
	for (u64 e = (from) + threadIdx.x; e < (to);) { \
		u64 i[4]; \
		if (e + 3 * blockDim.x < (to)) { \
			_Pragma("unroll") for (int k = 0; k < 4; k++, e += blockDim.x) { \
				i[k] = element(e, channel, c, inner); \
				read; \
			} \
			_Pragma("unroll") for (int k = 0; k < 4; k++) { use; } \
			continue; \
		} \
		const int k = 0; \
		i[k] = element(e, channel, c, inner); \
		read; \
		use; \
		e += blockDim.x; \
	}

// batch_norm_sums: one block per channel, or per part of its elements. The output starts with the
// weight of the batch in the new running statistics. Then each block writes the sum of the
// differences from the shift, and the sum of their squares.
#define BATCH_NORM_SUMS(T, t) \
	extern "C" __global__ void batch_norm_sums_##t(double *partial, const T *x, const i64 *batches, double momentum, u64 n, u64 c, u64 inner, u64 parts) { \
		__shared__ double s[33]; \
		u64 all = n * inner; \
		ROWS(at, c * parts) { \
			u64 channel = at / parts, part = at % parts, to = all * (part + 1) / parts; \
			double shift = shift_of(x, channel, inner); \
			total<T> sum, squares; \
			double v[4]; \
			CHANNEL(all * part / parts, to, v[k] = (double)x[i[k]] - shift, (sum.add(v[k]), squares.add(v[k] * v[k]))) \
			double a = block_sum(sum.value(), s), b = block_sum(squares.value(), s); \
			if (threadIdx.x == 0) { \
				partial[1 + 2 * at] = a; \
				partial[2 + 2 * at] = b; \
				if (at == 0) \
					*partial = momentum == momentum ? momentum : 1 / (double)(*batches + 1); \
			} \
		} \
	}
FLOATS(BATCH_NORM_SUMS)

// batch_norm: one block per part of a channel. The first one of each channel writes the statistics.
#define BATCH_NORM(T, t) \
	extern "C" __global__ void batch_norm_##t(T *y, double *stats, const T *x, const T *w, const T *b, T *running_mean, T *running_var, i64 *batches, \
		const double *partial, double eps, u64 n, u64 c, u64 inner, u64 parts, u64 chunks, i64 training) { \
		__shared__ double s[33]; \
		u64 all = n * inner; \
		ROWS(at, c * chunks) { \
			u64 channel = at / chunks, chunk = at % chunks, to = all * (chunk + 1) / chunks; \
			double mean, variance, squares = 0; \
			if (training) { \
				double sum, more; \
				parts_of(partial + 1 + 2 * channel * parts, parts, &sum, &more, s); \
				double differ = sum / (double)all; \
				mean = shift_of(x, channel, inner) + differ; \
				squares = more - sum * differ; \
				squares = squares < 0 ? 0 : squares; \
				variance = squares / (double)all; \
			} else { \
				mean = (double)running_mean[channel]; \
				variance = (double)running_var[channel]; \
			} \
			double rstd = 1 / sqrt(variance + eps), scale = w ? rstd * (double)w[channel] : rstd, shift = b ? (double)b[channel] : 0; \
			if (chunk == 0 && threadIdx.x == 0) { \
				stats[channel] = mean; \
				stats[c + channel] = rstd; \
				if (training && running_mean) { \
					double share = *partial; \
					running_mean[channel] = (T)((1 - share) * (double)running_mean[channel] + share * mean); \
					running_var[channel] = (T)((1 - share) * (double)running_var[channel] + share * (squares / (double)(all - 1))); \
				} \
				if (training && batches && channel == 0) \
					++*batches; \
			} \
			double v[4]; \
			CHANNEL(all * chunk / chunks, to, v[k] = (double)x[i[k]], y[i[k]] = (T)((v[k] - mean) * scale + shift)) \
		} \
	}
FLOATS(BATCH_NORM)

#define BATCH_NORM_GRAD_SUMS(T, t) \
	extern "C" __global__ void batch_norm_grad_sums_##t(double *partial, const T *dy, const T *x, const double *stats, u64 n, u64 c, u64 inner, u64 parts) { \
		__shared__ double s[33]; \
		u64 all = n * inner; \
		ROWS(at, c * parts) { \
			u64 channel = at / parts, part = at % parts, to = all * (part + 1) / parts; \
			double mean = stats[channel]; \
			total<T> sum, dot; \
			double g[4], v[4]; \
			CHANNEL(all * part / parts, to, (g[k] = (double)dy[i[k]], v[k] = (double)x[i[k]]), (sum.add(g[k]), dot.add(g[k] * (v[k] - mean)))) \
			double a = block_sum(sum.value(), s), b = block_sum(dot.value(), s); \
			if (threadIdx.x == 0) { \
				partial[2 * at] = a; \
				partial[2 * at + 1] = b; \
			} \
		} \
	}
FLOATS(BATCH_NORM_GRAD_SUMS)

#define BATCH_NORM_GRAD(T, t) \
	extern "C" __global__ void batch_norm_grad_##t(T *dx, T *dw, T *db, const T *dy, const T *x, const T *w, const double *stats, const double *partial, \
		u64 n, u64 c, u64 inner, u64 parts, u64 chunks, i64 training) { \
		__shared__ double s[33]; \
		u64 all = n * inner; \
		ROWS(at, c * chunks) { \
			u64 channel = at / chunks, chunk = at % chunks, to = all * (chunk + 1) / chunks; \
			double mean = stats[channel], rstd = stats[c + channel], scale = w ? rstd * (double)w[channel] : rstd, sum, dot; \
			parts_of(partial + 2 * channel * parts, parts, &sum, &dot, s); \
			if (chunk == 0 && threadIdx.x == 0) { \
				if (dw) \
					dw[channel] = (T)(dot * rstd); \
				if (db) \
					db[channel] = (T)sum; \
			} \
			if (!dx) \
				continue; \
			double own = training ? sum / (double)all : 0, along = training ? dot * rstd * rstd / (double)all : 0, g[4], v[4]; \
			CHANNEL(all * chunk / chunks, to, (g[k] = (double)dy[i[k]], v[k] = (double)x[i[k]]), \
				dx[i[k]] = (T)(scale * (training ? g[k] - own - (v[k] - mean) * along : g[k]))) \
		} \
	}
FLOATS(BATCH_NORM_GRAD)
