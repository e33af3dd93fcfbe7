// Functions of rows. A row has a block, or a warp.

#include "exponential.h"
#include "rows.h"
#include "vector.h"

// long_rows is set for rows that a block reads once.
template <bool narrow, class T> constexpr bool long_rows = !narrow && sizeof(T) == 4;

// running is the sum of exp(v - top) of the elements that a warp has read, of which top is the
// greatest. All threads of the warp have the same top, so that they do not diverge.
struct running {
	float top = -INFINITY, base = 0; // base is top, or 0 before there is a greatest element
	double sum = 0;

	// add is called by the whole warp.
	template <int n> __device__ void add(const float (&v)[n]) {
		float most = v[0];
#pragma unroll
		for (int k = 1; k < n; k++)
			most = fmax(most, v[k]);
		if (__any_sync(~0u, most > top)) {
#pragma unroll
			for (int d = 16; d > 0; d /= 2)
				most = fmax(most, __shfl_xor_sync(~0u, most, d));
			sum *= exp((double)top - (double)most);
			base = top = most;
		}
		constexpr int at_once = n < 4 ? n : 4;
#pragma unroll
		for (int k = 0; k < n; k += at_once) {
			double e[at_once];
			exponentials(e, *(const float(*)[at_once])(v + k), base);
#pragma unroll
			for (int l = 0; l < at_once; l++)
				sum += e[l];
		}
	}

	// read adds n packs of w elements, count of which a thread loads before it uses them.
	template <int w, int count> __device__ void read(const float *row, u64 apart, u64 n, const share<false> &o) {
		u64 lane = threadIdx.x % 32, step = o.step(), j = o.first() - lane;
		__align__(16) float v[count * w], last[w];
		for (; j + (count - 1) * step + 32 <= n; j += count * step) {
#pragma unroll
			for (int k = 0; k < count; k++)
				*(pack<float, w> *)(v + w * k) = *(const pack<float, w> *)(row + (j + k * step + lane) * apart);
			add(v);
		}
		for (; j < n; j += step) {
#pragma unroll
			for (int k = 0; k < w; k++)
				last[k] = j + lane < n ? row[(j + lane) * apart + k] : -INFINITY;
			add(last);
		}
	}
};

// whole_packs is the number of packs of four elements of a row.
static __device__ u64 whole_packs(const rows &r, const float *row, const float *to) { return r.inner == 1 && aligned(row, to) ? r.cols / 4 : 0; }

// long_row reads a row once.
static __device__ row_sum long_row(const float *row, const rows &r, const share<false> &o) {
	running all;
	u64 packs = whole_packs(r, row, row);
	all.read<4, 4>(row, 4, packs, o);
	all.read<1, 8>(row + 4 * packs, r.inner, r.cols - 4 * packs, o);
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
	if constexpr (long_rows<narrow, T>)
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

// rewrite calls f with each of n packs of w elements of from, and with the number of the pack's
// first element. f changes the elements, and rewrite stores them in to, which may be the same
// memory. So a thread loads count packs before it stores the first.
template <int w, int count, class T, class F> static __device__ void rewrite(T *to, const T *from, u64 apart, u64 n, u64 j, u64 step, F f) {
	for (; j + (count - 1) * step < n; j += count * step) {
		pack<T, w> v[count];
#pragma unroll
		for (int k = 0; k < count; k++)
			v[k] = *(const pack<T, w> *)(from + (j + k * step) * apart);
#pragma unroll
		for (int k = 0; k < count; k++) {
			f(v[k].v, w * (j + k * step));
			*(pack<T, w> *)(to + (j + k * step) * apart) = v[k];
		}
	}
#pragma unroll 1
	for (; j < n; j += step) {
		pack<T, w> v = *(const pack<T, w> *)(from + j * apart);
		f(v.v, w * j);
		*(pack<T, w> *)(to + j * apart) = v;
	}
}

// slopes sets a row's gradient. scale is the gradient of the loss over the divisor of the losses.
// Each product is rounded separately, so that the kernels that call it produce the same bits.
template <bool narrow, class T> static __device__ void slopes(T *to, const T *row, i64 label, const T *weights, double scale, double spread, const row_sum &of, const share<narrow> &o, const entropy &e) {
	bool skip = label == e.ignore || no_class(label, e);
	double even = e.smoothing / (double)e.r.cols, spreading = __dmul_rn(scale, even);
	double hit = skip ? 0 : __dmul_rn(__dmul_rn(scale, 1 - e.smoothing), weights ? (double)weights[label] : 1);
	double scaled = (hit + __dmul_rn(scale, spread)) / of.sum;
	auto slope = [&](auto &v, u64 j) {
		constexpr int n = sizeof(v) / sizeof(T);
		double s[n];
		if constexpr (long_rows<narrow, T>)
			exponentials(s, v, (float)of.top);
		else
			s[0] = exp((double)v[0] - of.top);
#pragma unroll
		for (int k = 0; k < n; k++) {
			s[k] = __dmul_rn(s[k], scaled);
			if (e.smoothing != 0)
				s[k] -= __dmul_rn(spreading, weights ? (double)weights[j + k] : 1);
			if (j + k == (u64)label)
				s[k] -= hit;
			v[k] = skip ? (T)0 : (T)s[k];
		}
	};
	u64 packs = 0;
	if constexpr (long_rows<narrow, T>) {
		packs = whole_packs(e.r, row, to);
		rewrite<4, 2>(to, row, 4, packs, o.first(), o.step(), slope);
	}
	auto rest = [&](auto &v, u64 j) { slope(v, 4 * packs + j); };
	rewrite<1, 4>(to + 4 * packs, row + 4 * packs, e.r.inner, e.r.cols - 4 * packs, o.first(), o.step(), rest);
}

#define LABEL_LOSSES(T, t, L, l) CROSS_ENTROPY(cross_entropy, T, t, T, L, l, true) CROSS_ENTROPY(cross_entropy_block, T, t, T, L, l, false)
#define LABELS(T, t) LABEL_LOSSES(T, t, int, i32) LABEL_LOSSES(T, t, i64, i64)
FLOATS(LABELS)

// entropy_grad: a row has one of the 8 warps of a block if narrow is set, otherwise a block. Each
// block counts the labels, unless per has the divisor that label_weights computed. If each is set,
// dloss has an element per row. sums, unless it is null, has the rows' sums.
template <bool narrow, class T, class L>
static __device__ void entropy_grad(T *dst, const T *logits, const L *labels, const T *weights, const T *dloss, const row_sum *sums, const double *per, bool each, const entropy &e) {
	__shared__ double s[33];
	double scale = each ? 0 : (double)*dloss / (per ? *per : label_weights(labels, weights, e, s)), spread = spread_of(weights, e, s);
	share<narrow> o = {s};
	SHARED_ROWS(i, o, e.r) {
		const T *row = logits + e.r.start(i);
		if (each)
			scale = (double)dloss[i];
		slopes(dst + e.r.start(i), row, labels[i], weights, scale, spread, sums ? sums[i] : exponentials_of(row, e.r, o), o, e);
	}
}

#define ENTROPY_GRAD(name, T, t, L, l, narrow) \
	extern "C" __global__ void __launch_bounds__(512, !narrow && sizeof(T) == 4 ? 2 : 1) name##_##l##_##t(T *dst, const T *logits, const L *labels, const T *weights, const T *dloss, \
		const row_sum *sums, const double *per, i64 each, entropy e) { \
		entropy_grad<narrow>(dst, logits, labels, weights, dloss, sums, per, each, e); \
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
