// Functions of rows, with one block of at least a warp per row.

#include "rows.h"

// log_sum sets the greatest element of a row and the sum of exp(v - greatest). A NaN makes the sum
// NaN.
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

// surprise is the loss of a row, computed by a warp. It sets *of for a row that counts.
template <class T, class L> static __device__ double surprise(const T *logits, const L *labels, const T *weights, u64 i, const entropy &e, row_sum *of) {
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
	top = warp_max(top);
	total<T> part;
	for (u64 j = lane; j < e.r.cols; j += 32)
		part.add(exp((double)row[j * e.r.inner] - top));
	*of = {top, warp_sum(part.value())};
	double less = log(of->sum);
	// Next to large logits the logarithm would be lost, so it is added last.
	double own = top - (double)row[label * e.r.inner] + less;
	if (weights)
		own *= (double)weights[label];
	if (e.smoothing == 0)
		return own;
	total<T> all;
	for (u64 j = lane; j < e.r.cols; j += 32)
		all.add((weights ? (double)weights[j] : 1) * (top - (double)row[j * e.r.inner] + less));
	return (1 - e.smoothing) * own + e.smoothing / (double)e.r.cols * warp_sum(all.value());
}

// slopes sets a row's gradient. scale is the gradient of the loss over the divisor of the losses. A
// thread has elements first, first + step, …. Each product is rounded separately, so that the
// kernels that call it produce the same bits.
template <class T> static __device__ void slopes(T *to, const T *row, i64 label, const T *weights, double scale, double spread, const row_sum &of, u64 first, u64 step, const entropy &e) {
	bool skip = label == e.ignore || no_class(label, e);
	double even = e.smoothing / (double)e.r.cols, spreading = __dmul_rn(scale, even);
	double hit = skip ? 0 : __dmul_rn(__dmul_rn(scale, 1 - e.smoothing), weights ? (double)weights[label] : 1);
	double scaled = (hit + __dmul_rn(scale, spread)) / of.sum;
	for (u64 j = first; j < e.r.cols; j += step) {
		double v = __dmul_rn(exp((double)row[j * e.r.inner] - of.top), scaled);
		if (e.smoothing != 0)
			v -= __dmul_rn(spreading, weights ? (double)weights[j] : 1);
		if (j == (u64)label)
			v -= hit;
		to[j * e.r.inner] = skip ? (T)0 : (T)v;
	}
}

#define LABELS(T, t) CROSS_ENTROPY(cross_entropy, T, t, T, int, i32) CROSS_ENTROPY(cross_entropy, T, t, T, i64, i64)
FLOATS(LABELS)

// cross_entropy_grad: one block per row, or one of its 8 warps per row if narrow is set. Each block
// counts the labels, unless per has the divisor that label_weights computed. If each is set, dloss
// has an element per row.
#define CROSS_ENTROPY_GRAD(T, t, L, l) \
	extern "C" __global__ void __launch_bounds__(1024) label_weights_##l##_##t(double *per, const L *labels, const T *weights, entropy e) { \
		__shared__ double s[33]; \
		double all = label_weights(labels, weights, e, s); \
		if (threadIdx.x == 0) \
			*per = all; \
	} \
	extern "C" __global__ void cross_entropy_grad_##l##_##t(T *dst, const T *logits, const L *labels, const T *weights, const T *dloss, \
		const double *per, i64 each, i64 narrow, entropy e) { \
		__shared__ double s[33]; \
		double scale = each ? 0 : (double)*dloss / (per ? *per : label_weights(labels, weights, e, s)); \
		double spread = spread_of(weights, e, s); \
		u64 first = narrow ? threadIdx.x % 32 : threadIdx.x, step = narrow ? 32 : blockDim.x, together = narrow ? blockDim.x / 32 : 1; \
		for (u64 i = narrow ? blockIdx.x * together + threadIdx.x / 32 : blockIdx.x; i < e.r.n; i += gridDim.x * together) { \
			const T *row = logits + e.r.start(i); \
			if (each) \
				scale = (double)dloss[i]; \
			double top = -INFINITY; \
			for (u64 j = first; j < e.r.cols; j += step) \
				top = fmax(top, (double)row[j * e.r.inner]); \
			top = narrow ? warp_max(top) : block_max(top, s); \
			total<T> part; \
			for (u64 j = first; j < e.r.cols; j += step) \
				part.add(exp((double)row[j * e.r.inner] - top)); \
			double sum = narrow ? warp_sum(part.value()) : block_sum(part.value(), s); \
			slopes(dst + e.r.start(i), row, labels[i], weights, scale, spread, {top, sum}, first, step, e); \
		} \
	}
#define LABEL_GRADS(T, t) CROSS_ENTROPY_GRAD(T, t, int, i32) CROSS_ENTROPY_GRAD(T, t, i64, i64)
FLOATS(LABEL_GRADS)
