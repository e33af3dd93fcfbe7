// Functions of rows. A row has a block, or a warp.

#include "rows.h"

// batch is the number of elements of a long row that a thread loads before it uses them.
enum { batch = 4 };

// running is the sum of exp(v - top) of the elements that a warp has read, of which top is the
// greatest. All threads of the warp have the same top, so that they do not diverge.
struct running {
	float top = -INFINITY;
	double base = 0; // top, or 0 before there is a greatest element
	double sum = 0;

	// raise is called by the whole warp, with the greatest of each thread's next elements.
	__device__ void raise(float most) {
		if (!__any_sync(~0u, most > top))
			return;
#pragma unroll
		for (int d = 16; d > 0; d /= 2)
			most = fmax(most, __shfl_xor_sync(~0u, most, d));
		sum *= exp((double)top - (double)most);
		base = top = most;
	}
	__device__ void add(float v) { sum += exp((double)v - base); }
};

// long_row reads a row once.
static __device__ row_sum long_row(const float *row, const rows &r, const share<false> &o) {
	u64 lane = threadIdx.x % 32, step = o.step(), j = o.first() - lane;
	running all;
	for (; j + (batch - 1) * step + 32 <= r.cols; j += batch * step) {
		float v[batch], most = -INFINITY;
#pragma unroll
		for (int k = 0; k < batch; k++)
			v[k] = row[(j + k * step + lane) * r.inner];
#pragma unroll
		for (int k = 0; k < batch; k++)
			most = fmax(most, v[k]);
		all.raise(most);
#pragma unroll
		for (int k = 0; k < batch; k++)
			all.add(v[k]);
	}
	for (; j < r.cols; j += step) {
		float v = j + lane < r.cols ? row[(j + lane) * r.inner] : -INFINITY;
		all.raise(v);
		all.add(v);
	}
	double top = o.max(all.top);
	all.sum *= exp((double)all.top - top);
	return {top, o.sum(all.sum)};
}

// greatest_first reads a row twice, so that its sum is rounded less often.
template <bool narrow, class T> static __device__ row_sum greatest_first(const T *row, const rows &r, const share<narrow> &o) {
	double top = -INFINITY;
	for (u64 j = o.first(); j < r.cols; j += o.step())
		top = fmax(top, (double)row[j * r.inner]);
	top = o.max(top);
	total<T> sum;
	for (u64 j = o.first(); j < r.cols; j += o.step())
		sum.add(exp((double)row[j * r.inner] - top));
	return {top, o.sum(sum.value())};
}

#define SOFTMAX(T, t) \
	extern "C" __global__ void softmax_##t(T *dst, const T *x, rows r) { \
		__shared__ double s[33]; \
		ROWS(i, r) { \
			u64 at = r.start(i); \
			row_sum of = greatest_first<false>(x + at, r, {s}); \
			COLS(j, r) dst[at + j * r.inner] = (T)(exp((double)x[at + j * r.inner] - of.top) / of.sum); \
		} \
	} \
	extern "C" __global__ void log_softmax_##t(T *dst, const T *x, rows r) { \
		__shared__ double s[33]; \
		ROWS(i, r) { \
			u64 at = r.start(i); \
			row_sum of = greatest_first<false>(x + at, r, {s}); \
			double less = log(of.sum); \
			COLS(j, r) dst[at + j * r.inner] = (T)((double)x[at + j * r.inner] - of.top - less); \
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

// exponentials_of is the greatest element of a row and the sum of its exponentials.
template <bool narrow, class T> static __device__ row_sum exponentials_of(const T *row, const rows &r, const share<narrow> &o) {
	if constexpr (!narrow && sizeof(T) == 4)
		return long_row(row, r, o);
	return greatest_first(row, r, o);
}

// surprise is the loss of a row. It sets *of for a row that counts.
template <bool narrow, class T, class L> static __device__ double surprise(const T *logits, const L *labels, const T *weights, u64 i, const share<narrow> &o, const entropy &e, row_sum *of) {
	i64 label = labels[i];
	if (label == e.ignore)
		return 0;
	if (no_class(label, e))
		return NAN;
	const T *row = logits + e.r.start(i);
	*of = exponentials_of(row, e.r, o);
	double less = log(of->sum);
	// Next to large logits the logarithm would be lost, so it is added last.
	double own = of->top - (double)row[label * e.r.inner] + less;
	if (weights)
		own *= (double)weights[label];
	if (e.smoothing == 0)
		return own;
	total<T> all;
	for (u64 j = o.first(); j < e.r.cols; j += o.step())
		all.add((weights ? (double)weights[j] : 1) * (of->top - (double)row[j * e.r.inner] + less));
	return (1 - e.smoothing) * own + e.smoothing / (double)e.r.cols * o.sum(all.value());
}

// slopes sets a row's gradient. scale is the gradient of the loss over the divisor of the losses.
// Each product is rounded separately, so that the kernels that call it produce the same bits.
template <bool narrow, class T> static __device__ void slopes(T *to, const T *row, i64 label, const T *weights, double scale, double spread, const row_sum &of, const share<narrow> &o, const entropy &e) {
	bool skip = label == e.ignore || no_class(label, e);
	double even = e.smoothing / (double)e.r.cols, spreading = __dmul_rn(scale, even);
	double hit = skip ? 0 : __dmul_rn(__dmul_rn(scale, 1 - e.smoothing), weights ? (double)weights[label] : 1);
	double scaled = (hit + __dmul_rn(scale, spread)) / of.sum;
	u64 step = o.step(), j = o.first();
	auto slope = [&](u64 j, T v) {
		double by = __dmul_rn(exp((double)v - of.top), scaled);
		if (e.smoothing != 0)
			by -= __dmul_rn(spreading, weights ? (double)weights[j] : 1);
		if (j == (u64)label)
			by -= hit;
		to[j * e.r.inner] = skip ? (T)0 : (T)by;
	};
	for (; j + (batch - 1) * step < e.r.cols; j += batch * step) {
		T v[batch]; // all are read before to is written, which may be the same memory
#pragma unroll
		for (int k = 0; k < batch; k++)
			v[k] = row[(j + k * step) * e.r.inner];
#pragma unroll
		for (int k = 0; k < batch; k++)
			slope(j + k * step, v[k]);
	}
#pragma unroll 1
	for (; j < e.r.cols; j += step)
		slope(j, row[j * e.r.inner]);
}

#define LABEL_LOSSES(T, t, L, l) CROSS_ENTROPY(cross_entropy, T, t, T, L, l, true) CROSS_ENTROPY(cross_entropy_block, T, t, T, L, l, false)
#define LABELS(T, t) LABEL_LOSSES(T, t, int, i32) LABEL_LOSSES(T, t, i64, i64)
FLOATS(LABELS)

// entropy_grad: a row has one of the 8 warps of a block if narrow is set, otherwise a block. Each
// block counts the labels, unless per has the divisor that label_weights computed. If each is set,
// dloss has an element per row.
template <bool narrow, class T, class L>
static __device__ void entropy_grad(T *dst, const T *logits, const L *labels, const T *weights, const T *dloss, const double *per, bool each, const entropy &e) {
	__shared__ double s[33];
	double scale = each ? 0 : (double)*dloss / (per ? *per : label_weights(labels, weights, e, s)), spread = spread_of(weights, e, s);
	share<narrow> o = {s};
	SHARED_ROWS(i, o, e.r) {
		const T *row = logits + e.r.start(i);
		if (each)
			scale = (double)dloss[i];
		slopes(dst + e.r.start(i), row, labels[i], weights, scale, spread, exponentials_of(row, e.r, o), o, e);
	}
}

#define ENTROPY_GRAD(name, T, t, L, l, narrow) \
	extern "C" __global__ void __launch_bounds__(512, !narrow && sizeof(T) == 4 ? 2 : 1) name##_##l##_##t(T *dst, const T *logits, const L *labels, const T *weights, const T *dloss, \
		const double *per, i64 each, entropy e) { \
		entropy_grad<narrow>(dst, logits, labels, weights, dloss, per, each, e); \
	}
#define CROSS_ENTROPY_GRAD(T, t, L, l) \
	extern "C" __global__ void __launch_bounds__(1024) label_weights_##l##_##t(double *per, const L *labels, const T *weights, entropy e) { \
		__shared__ double s[33]; \
		double all = label_weights(labels, weights, e, s); \
		if (threadIdx.x == 0) \
			*per = all; \
	} \
	ENTROPY_GRAD(cross_entropy_grad, T, t, L, l, true) ENTROPY_GRAD(cross_entropy_grad_block, T, t, L, l, false)
#define LABEL_GRADS(T, t) CROSS_ENTROPY_GRAD(T, t, int, i32) CROSS_ENTROPY_GRAD(T, t, i64, i64)
FLOATS(LABEL_GRADS)
