// Normalisations. Statistics are double: the mean of each row or channel, followed by 1 over the
// standard deviation of each.

#include "kernels.h"

#define ROWS(i, rows) for (u64 i = blockIdx.x; i < (rows); i += gridDim.x)

// plan is plan.RowNorm.
struct plan {
	u64 n, groups, per, inner;
	double eps;
	i64 centered;
};

// weight_of is the offset of the weight of a row's element j from that of its first element.
static __device__ u64 weight_of(u64 j, u64 inner) { return inner == 1 ? j : divide(j, inner); }

#define NORM(T, t) \
	extern "C" __global__ void normalize_##t(T *y, double *stats, const T *x, const T *w, const T *b, plan d) { \
		__shared__ double s[33]; \
		u64 rows = d.n * d.groups, cols = d.per * d.inner; \
		ROWS(r, rows) { \
			const T *row = x + r * cols; \
			u64 g = r % d.groups * d.per; \
			double mean = 0; \
			if (d.centered) { \
				total<T> own; \
				for (u64 j = threadIdx.x; j < cols; j += blockDim.x) \
					own.add((double)row[j]); \
				mean = block_sum(own.value(), s) / (double)cols; \
			} \
			total<T> squares; \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) { \
				double v = (double)row[j] - mean; \
				squares.add(v * v); \
			} \
			double rstd = 1 / sqrt(block_sum(squares.value(), s) / (double)cols + d.eps); \
			if (threadIdx.x == 0) { \
				stats[r] = mean; \
				stats[rows + r] = rstd; \
			} \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) { \
				u64 k = g + weight_of(j, d.inner); \
				double scale = w ? rstd * (double)w[k] : rstd, shift = b ? (double)b[k] : 0; \
				y[r * cols + j] = (T)(((double)row[j] - mean) * scale + shift); \
			} \
		} \
	}
FLOATS(NORM)

// add_normalize is normalize of x + other. It writes x + other to sum, which may be the memory of
// either.
#define ADD_NORM(T, t) \
	extern "C" __global__ void add_normalize_##t(T *sum, T *y, double *stats, const T *x, const T *other, const T *w, const T *b, plan d) { \
		__shared__ double s[33]; \
		u64 rows = d.n * d.groups, cols = d.per * d.inner; \
		ROWS(r, rows) { \
			T *row = sum + r * cols; \
			u64 g = r % d.groups * d.per; \
			double mean = 0; \
			total<T> own; \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) { \
				T v = x[r * cols + j] + other[r * cols + j]; \
				row[j] = v; \
				own.add((double)v); \
			} \
			if (d.centered) \
				mean = block_sum(own.value(), s) / (double)cols; \
			total<T> squares; \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) { \
				double v = (double)row[j] - mean; \
				squares.add(v * v); \
			} \
			double rstd = 1 / sqrt(block_sum(squares.value(), s) / (double)cols + d.eps); \
			if (threadIdx.x == 0) { \
				stats[r] = mean; \
				stats[rows + r] = rstd; \
			} \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) { \
				u64 k = g + weight_of(j, d.inner); \
				double scale = w ? rstd * (double)w[k] : rstd, shift = b ? (double)b[k] : 0; \
				y[r * cols + j] = (T)(((double)row[j] - mean) * scale + shift); \
			} \
		} \
	}
FLOATS(ADD_NORM)

// With onto the gradient is added to dx, rounded like a sum of two tensors, so the product before
// it must not become part of a multiply-add.
#define NORM_GRAD(T, t) \
	extern "C" __global__ void normalize_grad_##t(T *dx, const T *dy, const T *x, const T *w, const double *stats, i64 onto, plan d) { \
		__shared__ double s[33]; \
		u64 rows = d.n * d.groups, cols = d.per * d.inner; \
		ROWS(r, rows) { \
			const T *row = x + r * cols, *grad = dy + r * cols; \
			u64 g = r % d.groups * d.per; \
			double mean = stats[r], rstd = stats[rows + r]; \
			total<T> sum, dot; \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) { \
				double v = (double)grad[j] * (w ? (double)w[g + weight_of(j, d.inner)] : 1); \
				sum.add(v); \
				dot.add(v * ((double)row[j] - mean)); \
			} \
			double own = block_sum(sum.value(), s) / (double)cols, along = block_sum(dot.value(), s) * rstd * rstd / (double)cols; \
			if (!d.centered) \
				own = 0; \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) { \
				double v = (double)grad[j] * (w ? (double)w[g + weight_of(j, d.inner)] : 1); \
				T made = (T)__dmul_rn(rstd, v - own - ((double)row[j] - mean) * along); \
				dx[r * cols + j] = onto ? dx[r * cols + j] + made : made; \
			} \
		} \
	}
FLOATS(NORM_GRAD)

// put writes the gradients of weight k and bias k, or parts of them.
template <class T> static __device__ void put(T *dw, T *db, double *partial, u64 parts, u64 part, u64 weights, u64 k, double dot, double sum) {
	if (parts > 1) {
		partial[2 * part * weights + k] = dot;
		partial[(2 * part + 1) * weights + k] = sum;
		return;
	}
	if (dw)
		dw[k] = (T)dot;
	if (db)
		db[k] = (T)sum;
}

// normalize_columns is for weights with one element in each row. A block of 32 by 8 threads has 32
// weights, and a column of its threads shares one. If there are several parts, the last block adds
// them, with a ticket for each 32 weights.
#define NORM_COLUMNS(T, t) \
	extern "C" __global__ void normalize_columns_##t(T *dw, T *db, double *partial, unsigned *tickets, const T *dy, const T *x, const double *stats, u64 parts, plan d) { \
		__shared__ double dots[8][33], sums[8][33]; \
		u64 weights = d.groups * d.per, wide = (weights + 31) / 32, rows = d.n * d.groups; \
		for (u64 at = blockIdx.x; at < wide * parts; at += gridDim.x) { \
			u64 k = at % wide * 32 + threadIdx.x, part = at / wide, to = d.n * (part + 1) / parts; \
			total<T> dot, sum; \
			if (k < weights) \
				for (u64 n = d.n * part / parts + threadIdx.y; n < to; n += 8) { \
					u64 r = n * d.groups + k / d.per, i = r * d.per + k % d.per; \
					double g = (double)dy[i]; \
					sum.add(g); \
					dot.add(g * ((double)x[i] - stats[r]) * stats[rows + r]); \
				} \
			dots[threadIdx.y][threadIdx.x] = dot.value(); \
			sums[threadIdx.y][threadIdx.x] = sum.value(); \
			__syncthreads(); \
			if (threadIdx.y == 0 && k < weights) { \
				double a = dots[0][threadIdx.x], b = sums[0][threadIdx.x]; \
				for (int i = 1; i < 8; i++) { \
					a += dots[i][threadIdx.x]; \
					b += sums[i][threadIdx.x]; \
				} \
				put(dw, db, partial, parts, part, weights, k, a, b); \
			} \
			__syncthreads(); \
			if (parts == 1 || !comes_last(tickets + at % wide, parts) || threadIdx.y || k >= weights) \
				continue; \
			total<double> all_dots, all_sums; \
			for (u64 p = 0; p < parts; p++) { \
				all_dots.add(partial[2 * p * weights + k]); \
				all_sums.add(partial[(2 * p + 1) * weights + k]); \
			} \
			put(dw, db, partial, 1, 0, weights, k, all_dots.value(), all_sums.value()); \
		} \
	}
FLOATS(NORM_COLUMNS)
NORM_COLUMNS(bfloat16, bf16)

// normalize_grads is normalize_grad and normalize_columns in one launch, for few rows with a single
// group. A block has 8 rows, one per warp, and then their columns. The last block adds the parts of
// all.
enum { warps = 8 };
#define NORM_GRADS(T, t) \
	extern "C" __global__ void __launch_bounds__(256) normalize_grads_##t(T *dx, T *dw, T *db, double *partial, unsigned *ticket, const T *dy, const T *x, const T *w, \
		const double *stats, i64 onto, plan d) { \
		u64 first = blockIdx.x * (u64)warps, r = first + threadIdx.x / 32, cols = d.per; \
		if (r < d.n) { \
			const T *row = x + r * cols, *grad = dy + r * cols; \
			double mean = stats[r], rstd = stats[d.n + r]; \
			total<T> sum, dot; \
			for (u64 j = threadIdx.x % 32; j < cols; j += 32) { \
				double v = (double)grad[j] * (w ? (double)w[j] : 1); \
				sum.add(v); \
				dot.add(v * ((double)row[j] - mean)); \
			} \
			double own = d.centered ? warp_sum(sum.value()) / (double)cols : 0, along = warp_sum(dot.value()) * rstd * rstd / (double)cols; \
			for (u64 j = threadIdx.x % 32; j < cols; j += 32) { \
				double v = (double)grad[j] * (w ? (double)w[j] : 1); \
				T made = (T)__dmul_rn(rstd, v - own - ((double)row[j] - mean) * along); \
				dx[r * cols + j] = onto ? dx[r * cols + j] + made : made; \
			} \
		} \
		for (u64 k = threadIdx.x; k < cols; k += blockDim.x) { \
			total<T> dot, sum; \
			_Pragma("unroll") for (int i = 0; i < warps; i++) \
				if (first + i < d.n) { \
					double g = (double)dy[(first + i) * cols + k]; \
					sum.add(g); \
					dot.add(g * ((double)x[(first + i) * cols + k] - stats[first + i]) * stats[d.n + first + i]); \
				} \
			put(dw, db, partial, gridDim.x, blockIdx.x, cols, k, dot.value(), sum.value()); \
		} \
		if (gridDim.x == 1 || !comes_last(ticket, gridDim.x)) \
			return; \
		for (u64 k = threadIdx.x; k < cols; k += blockDim.x) { \
			total<double> dots, sums; \
			_Pragma("unroll 4") for (unsigned p = 0; p < gridDim.x; p++) { \
				dots.add(partial[2 * p * cols + k]); \
				sums.add(partial[(2 * p + 1) * cols + k]); \
			} \
			put(dw, db, partial, 1, 0, cols, k, dots.value(), sums.value()); \
		} \
	}
FLOATS(NORM_GRADS)

// normalize_channels is for weights with many elements in each row. It has a block per weight, or
// per part of its elements, and a ticket per weight.
#define NORM_CHANNELS(T, t) \
	extern "C" __global__ void normalize_channels_##t(T *dw, T *db, double *partial, unsigned *tickets, const T *dy, const T *x, const double *stats, u64 parts, plan d) { \
		__shared__ double s[33]; \
		u64 weights = d.groups * d.per, rows = d.n * d.groups, all = d.n * d.inner; \
		ROWS(at, weights * parts) { \
			u64 k = at % weights, part = at / weights, to = all * (part + 1) / parts; \
			total<T> dot, sum; \
			for (u64 l = all * part / parts + threadIdx.x; l < to; l += blockDim.x) { \
				u64 n = divide(l, d.inner), r = n * d.groups + k / d.per, i = (r * d.per + k % d.per) * d.inner + l - n * d.inner; \
				double g = (double)dy[i]; \
				sum.add(g); \
				dot.add(g * ((double)x[i] - stats[r]) * stats[rows + r]); \
			} \
			double a = block_sum(dot.value(), s), b = block_sum(sum.value(), s); \
			if (threadIdx.x == 0) \
				put(dw, db, partial, parts, part, weights, k, a, b); \
			if (parts == 1 || !comes_last(tickets + k, parts)) \
				continue; \
			total<double> all_dots, all_sums; \
			for (u64 p = threadIdx.x; p < parts; p += blockDim.x) { \
				all_dots.add(partial[2 * p * weights + k]); \
				all_sums.add(partial[(2 * p + 1) * weights + k]); \
			} \
			a = block_sum(all_dots.value(), s), b = block_sum(all_sums.value(), s); \
			if (threadIdx.x == 0) \
				put(dw, db, partial, 1, 0, weights, k, a, b); \
		} \
	}
FLOATS(NORM_CHANNELS)
NORM_CHANNELS(bfloat16, bf16)

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
