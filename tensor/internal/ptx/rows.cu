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

// row_sum is the greatest element of a row, and the sum of exp(v - greatest), by a warp.
struct row_sum {
	double top, sum;
};

// surprise is the loss of a row, by a warp. It sets what it finds of a row that counts.
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

// counts_for is the weight of a row's label in what the sum of the losses is divided by.
template <class T> static __device__ double counts_for(i64 label, const T *weights, const entropy &e) {
	return label == e.ignore ? 0 : !weights ? 1 : no_class(label, e) ? 0 : (double)weights[label];
}

// label_weights is what the sum of the losses is divided by, for each thread of a block. s has 33 places.
template <class T, class L> static __device__ double label_weights(const L *labels, const T *weights, const entropy &e, double *s) {
	if (!e.mean)
		return 1;
	total<T> own;
	for (u64 i = threadIdx.x; i < e.r.n; i += blockDim.x)
		own.add(counts_for(labels[i], weights, e));
	return block_sum(own.value(), s);
}

// spread_of is what smoothing gives all classes together, for each thread of a block.
template <class T> static __device__ double spread_of(const T *weights, const entropy &e, double *s) {
	if (!weights || e.smoothing == 0)
		return e.smoothing;
	total<T> own;
	COLS(j, e.r) own.add(weights[j]);
	return e.smoothing / (double)e.r.cols * block_sum(own.value(), s);
}

// slopes sets a row's gradient, of a loss whose gradient over what the losses are divided by is scale. A thread has elements first, first + step, ….
template <class T> static __device__ void slopes(T *to, const T *row, i64 label, const T *weights, double scale, double spread, const row_sum &of, u64 first, u64 step, const entropy &e) {
	bool skip = label == e.ignore || no_class(label, e);
	double even = e.smoothing / (double)e.r.cols, hit = skip ? 0 : scale * (1 - e.smoothing) * (weights ? (double)weights[label] : 1);
	double scaled = (hit + scale * spread) / of.sum;
	for (u64 j = first; j < e.r.cols; j += step) {
		double v = exp((double)row[j * e.r.inner] - of.top) * scaled;
		if (e.smoothing != 0)
			v -= scale * even * (weights ? (double)weights[j] : 1);
		if (j == (u64)label)
			v -= hit;
		to[j * e.r.inner] = skip ? (T)0 : (T)v;
	}
}

// cross_entropy: a row for each warp, of 8 in a block. With each, loss has all rows' losses. Each block leaves the sum of its losses, that of what they
// are divided by, and the first row whose label is no class, in part; the last one adds those up. grad, if it is not null, gets the gradient of the logits, of a loss whose own is 1.
#define CROSS_ENTROPY(T, t, L, l) \
	extern "C" __global__ void cross_entropy_##l##_##t(T *loss, T *grad, const T *logits, const L *labels, const T *weights, fault *f, double *part, \
		unsigned *ticket, i64 each, entropy e) { \
		__shared__ double s[33]; \
		__shared__ u64 bad; \
		total<T> own, per; \
		u64 wrong = ~0ull; \
		double scale = grad ? 1 / label_weights(labels, weights, e, s) : 0, spread = grad ? spread_of(weights, e, s) : 0; \
		for (u64 i = blockIdx.x * (u64)8 + threadIdx.x / 32; i < e.r.n; i += gridDim.x * (u64)8) { \
			row_sum of = {0, 1}; \
			double v = surprise(logits, labels, weights, i, e, &of); \
			if (grad) \
				slopes(grad + e.r.start(i), logits + e.r.start(i), labels[i], weights, scale, spread, of, threadIdx.x % 32, 32, e); \
			if (threadIdx.x % 32) \
				continue; \
			if (each) \
				loss[i] = (T)v; \
			own.add(v); \
			per.add(counts_for(labels[i], weights, e)); \
			if (wrong == ~0ull && no_class(labels[i], e)) \
				wrong = i; \
		} \
		double sum = block_sum(own.value(), s), count = block_sum(per.value(), s); \
		bad = ~0ull; \
		__syncthreads(); \
		if (wrong != ~0ull) \
			atomicMin(&bad, wrong); \
		__syncthreads(); \
		if (gridDim.x > 1) { \
			if (threadIdx.x == 0) { \
				part[3 * blockIdx.x] = sum; \
				part[3 * blockIdx.x + 1] = count; \
				((u64 *)part)[3 * blockIdx.x + 2] = bad; \
			} \
			if (!comes_last(ticket, gridDim.x)) \
				return; \
			total<T> sums, counts; \
			for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) { \
				sums.add(part[3 * i]); \
				counts.add(part[3 * i + 1]); \
				if (((u64 *)part)[3 * i + 2] != ~0ull) \
					atomicMin(&bad, ((u64 *)part)[3 * i + 2]); \
			} \
			sum = block_sum(sums.value(), s); \
			count = block_sum(counts.value(), s); \
			__syncthreads(); \
		} \
		if (threadIdx.x) \
			return; \
		if (!each) \
			*loss = (T)(sum / (e.mean ? count : 1)); \
		if (bad != ~0ull && f->code == 0) { \
			i64 got = labels[bad], most = 0x7fffffff; \
			f->row = (int)min((i64)bad, most); \
			f->got = (int)max(min(got, most), -most - 1); \
			f->limit = (int)min((i64)e.r.cols, most); \
			f->code = 1; \
		} \
	}
#define LABELS(T, t) CROSS_ENTROPY(T, t, int, i32) CROSS_ENTROPY(T, t, i64, i64)
FLOATS(LABELS)

// cross_entropy_grad: a block for each row, or one of its 8 warps if narrow. Each block counts the labels by itself, unless per has the divisor, which
// label_weights puts there; each: dloss is of every row.
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
