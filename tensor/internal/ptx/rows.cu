// Functions of rows: a block of one warp or more for each.

#include "kernels.h"

// rows are the vectors along one dimension of an array: cols elements each, inner elements apart.
struct rows {
	u64 n, cols, inner;
	__device__ u64 start(u64 i) const { return i / inner * (cols * inner) + i % inner; }
};

// log_sum returns the greatest element of a row and the sum of exp(v - greatest). A NaN is in the sum.
template <class T> static __device__ void log_sum(const T *row, const rows &r, double *s, double *top, double *sum) {
	double t = -INFINITY;
	for (u64 j = threadIdx.x; j < r.cols; j += blockDim.x)
		t = fmax(t, (double)row[j * r.inner]);
	*top = t = block_max(t, s);
	total<T> e;
	for (u64 j = threadIdx.x; j < r.cols; j += blockDim.x)
		e.add(exp((double)row[j * r.inner] - t));
	*sum = block_sum(e.value(), s);
}

#define ROWS(i, r) for (u64 i = blockIdx.x; i < (r).n; i += gridDim.x)
#define COLS(j, r) for (u64 j = threadIdx.x; j < (r).cols; j += blockDim.x)

#define SOFTMAX(T, t) \
	extern "C" __global__ void softmax_##t(T *dst, const T *x, rows r) { \
		__shared__ double s[33]; \
		ROWS(i, r) { \
			u64 at = r.start(i); \
			double top, sum; \
			log_sum(x + at, r, s, &top, &sum); \
			COLS(j, r) dst[at + j * r.inner] = (T)(exp((double)x[at + j * r.inner] - top) / sum); \
		} \
	} \
	extern "C" __global__ void log_softmax_##t(T *dst, const T *x, rows r) { \
		__shared__ double s[33]; \
		ROWS(i, r) { \
			u64 at = r.start(i); \
			double top, sum; \
			log_sum(x + at, r, s, &top, &sum); \
			sum = log(sum); \
			COLS(j, r) dst[at + j * r.inner] = (T)((double)x[at + j * r.inner] - top - sum); \
		} \
	}
FLOATS(SOFTMAX)

#define SOFTMAX_GRAD(T, t) \
	extern "C" __global__ void softmax_grad_##t(T *dst, const T *dy, const T *y, rows r) { \
		__shared__ double s[33]; \
		ROWS(i, r) { \
			u64 at = r.start(i); \
			const T *g = dy + at, *v = y + at; \
			total<T> d; \
			COLS(j, r) d.add((double)g[j * r.inner] * (double)v[j * r.inner]); \
			double dot = block_sum(d.value(), s); \
			COLS(j, r) dst[at + j * r.inner] = (T)((double)v[j * r.inner] * ((double)g[j * r.inner] - dot)); \
		} \
	} \
	extern "C" __global__ void log_softmax_grad_##t(T *dst, const T *dy, const T *y, rows r) { \
		__shared__ double s[33]; \
		ROWS(i, r) { \
			u64 at = r.start(i); \
			const T *g = dy + at, *v = y + at; \
			total<T> d; \
			COLS(j, r) d.add(g[j * r.inner]); \
			double sum = block_sum(d.value(), s); \
			COLS(j, r) dst[at + j * r.inner] = (T)((double)g[j * r.inner] - exp((double)v[j * r.inner]) * sum); \
		} \
	}
FLOATS(SOFTMAX_GRAD)

// argmax: one warp for each row; NaN is greater than everything, and of several the first counts.
#define ARGMAX(T, t) \
	extern "C" __global__ void argmax_##t(int *dst, const T *x, rows r) { \
		ROWS(i, r) { \
			const T *row = x + r.start(i); \
			T best = 0; \
			i64 at = -1; \
			for (i64 j = threadIdx.x; j < (i64)r.cols; j += 32) { \
				T v = row[j * r.inner]; \
				if (at < 0 || v > best || (v != v && best == best)) { \
					best = v; \
					at = j; \
				} \
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

// entropy is kernel.Entropy.
struct entropy {
	rows r;
	i64 ignore;
	double smoothing;
	i64 mean;
};

static __device__ bool no_class(i64 label, const entropy &e) { return label != e.ignore && (label < 0 || label >= (i64)e.r.cols); }

static __device__ double warp_sum(double v) {
	for (int d = 16; d > 0; d /= 2)
		v += __shfl_xor_sync(~0u, v, d);
	return v;
}

// surprise is the loss of a row, by a warp.
template <class T, class L> static __device__ double surprise(const T *logits, const L *labels, const T *weights, u64 i, const entropy &e) {
	i64 label = labels[i];
	if (label == e.ignore)
		return 0;
	if (no_class(label, e))
		return NAN;
	const T *row = logits + e.r.start(i);
	int lane = threadIdx.x % 32;
	double top = -INFINITY;
	for (u64 j = lane; j < e.r.cols; j += 32)
		top = fmax(top, (double)row[j * e.r.inner]);
	for (int d = 16; d > 0; d /= 2)
		top = fmax(top, __shfl_xor_sync(~0u, top, d));
	total<T> part;
	for (u64 j = lane; j < e.r.cols; j += 32)
		part.add(exp((double)row[j * e.r.inner] - top));
	double less = log(warp_sum(part.value()));
	double own = top - (double)row[label * e.r.inner] + less; // beside large logits the logarithm would be lost
	if (weights)
		own *= (double)weights[label];
	if (e.smoothing == 0)
		return own;
	total<T> all;
	for (u64 j = lane; j < e.r.cols; j += 32)
		all.add((weights ? (double)weights[j] : 1) * (top - (double)row[j * e.r.inner] + less));
	return (1 - e.smoothing) * own + e.smoothing / (double)e.r.cols * warp_sum(all.value());
}

// label_weights is what the sum of the losses is divided by, for each thread of a block. s has 33 places.
template <class T, class L> static __device__ double label_weights(const L *labels, const T *weights, const entropy &e, double *s) {
	if (!e.mean)
		return 1;
	total<T> own;
	for (u64 i = threadIdx.x; i < e.r.n; i += blockDim.x) {
		i64 label = labels[i];
		if (label != e.ignore)
			own.add(!weights ? 1 : no_class(label, e) ? 0 : (double)weights[label]);
	}
	return block_sum(own.value(), s);
}

// note_label keeps the first label that is no class. bad is shared.
template <class L> static __device__ void note_label(const L *labels, const entropy &e, fault *f, u64 *bad) {
	if (threadIdx.x == 0)
		*bad = ~0ull;
	__syncthreads();
	for (u64 i = threadIdx.x; i < e.r.n; i += blockDim.x)
		if (no_class(labels[i], e)) {
			atomicMin(bad, i);
			break;
		}
	__syncthreads();
	if (threadIdx.x == 0 && *bad != ~0ull && f->code == 0) {
		i64 got = labels[*bad], most = 0x7fffffff;
		f->row = (int)min((i64)*bad, most);
		f->got = (int)max(min(got, most), -most - 1);
		f->limit = (int)min((i64)e.r.cols, most);
		f->code = 1;
	}
}

// cross_entropy: one block of 32 warps, each of which takes every 32nd row. _part: 8 warps a block, and the loss of each row in
// double; _each: and rounded. _total: one block adds up what _part left, if there is any, and leaves the divisor in per, if
// that is not null.
#define CROSS_ENTROPY(T, t, L, l) \
	extern "C" __global__ void __launch_bounds__(1024) \
	cross_entropy_##l##_##t(T *loss, const T *logits, const L *labels, const T *weights, fault *f, entropy e) { \
		__shared__ double s[33]; \
		__shared__ u64 bad; \
		total<T> own; \
		for (u64 i = threadIdx.x / 32; i < e.r.n; i += 32) \
			own.add(surprise(logits, labels, weights, i, e)); \
		double sum = block_sum(threadIdx.x % 32 == 0 ? own.value() : 0, s); \
		double per = label_weights(labels, weights, e, s); \
		note_label(labels, e, f, &bad); \
		if (threadIdx.x == 0) \
			*loss = (T)(sum / per); \
	} \
	extern "C" __global__ void cross_entropy_part_##l##_##t(double *losses, const T *logits, const L *labels, const T *weights, entropy e) { \
		for (u64 i = blockIdx.x * (u64)8 + threadIdx.x / 32; i < e.r.n; i += gridDim.x * (u64)8) { \
			double v = surprise(logits, labels, weights, i, e); \
			if (threadIdx.x % 32 == 0) \
				losses[i] = v; \
		} \
	} \
	extern "C" __global__ void cross_entropy_each_##l##_##t(T *losses, const T *logits, const L *labels, const T *weights, entropy e) { \
		for (u64 i = blockIdx.x * (u64)8 + threadIdx.x / 32; i < e.r.n; i += gridDim.x * (u64)8) { \
			double v = surprise(logits, labels, weights, i, e); \
			if (threadIdx.x % 32 == 0) \
				losses[i] = (T)v; \
		} \
	} \
	extern "C" __global__ void __launch_bounds__(1024) \
	cross_entropy_total_##l##_##t(T *loss, double *per, const double *losses, const L *labels, const T *weights, fault *f, entropy e) { \
		__shared__ double s[33]; \
		__shared__ u64 bad; \
		if (f) \
			note_label(labels, e, f, &bad); \
		double all = label_weights(labels, weights, e, s); \
		if (per && threadIdx.x == 0) \
			*per = all; \
		if (!losses) \
			return; \
		total<T> own; \
		for (u64 i = threadIdx.x; i < e.r.n; i += blockDim.x) \
			own.add(losses[i]); \
		double sum = block_sum(own.value(), s); \
		if (threadIdx.x == 0) \
			*loss = (T)(sum / all); \
	}
#define LABELS(T, t) CROSS_ENTROPY(T, t, int, i32) CROSS_ENTROPY(T, t, i64, i64)
FLOATS(LABELS)

// cross_entropy_grad: each block counts the labels by itself, unless per has the divisor; each: dloss is of every row.
#define CROSS_ENTROPY_GRAD(T, t, L, l) \
	extern "C" __global__ void cross_entropy_grad_##l##_##t(T *dst, const T *logits, const L *labels, const T *weights, const T *dloss, \
		const double *per, i64 each, entropy e) { \
		__shared__ double s[33]; \
		double scale = each ? 0 : (double)*dloss / (per ? *per : label_weights(labels, weights, e, s)); \
		double even = e.smoothing / (double)e.r.cols, spread = e.smoothing; \
		if (weights && e.smoothing != 0) { \
			total<T> own; \
			COLS(j, e.r) own.add(weights[j]); \
			spread = even * block_sum(own.value(), s); \
		} \
		ROWS(i, e.r) { \
			i64 label = labels[i]; \
			bool skip = label == e.ignore || no_class(label, e); \
			u64 at = e.r.start(i); \
			if (each) \
				scale = (double)dloss[i]; \
			double top, sum; \
			log_sum(logits + at, e.r, s, &top, &sum); \
			double hit = skip ? 0 : scale * (1 - e.smoothing) * (weights ? (double)weights[label] : 1); \
			double scaled = (hit + scale * spread) / sum; \
			COLS(j, e.r) { \
				double v = exp((double)logits[at + j * e.r.inner] - top) * scaled; \
				if (e.smoothing != 0) \
					v -= scale * even * (weights ? (double)weights[j] : 1); \
				if (j == (u64)label) \
					v -= hit; \
				dst[at + j * e.r.inner] = skip ? (T)0 : (T)v; \
			} \
		} \
	}
#define LABEL_GRADS(T, t) CROSS_ENTROPY_GRAD(T, t, int, i32) CROSS_ENTROPY_GRAD(T, t, i64, i64)
FLOATS(LABEL_GRADS)
