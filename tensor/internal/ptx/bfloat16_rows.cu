// Functions of rows of bfloat16. rows.cu has those of float. A row is read once for both its
// greatest element and the sum of the exponentials.

#include "bfloat16.h"
#include "rows.h"

// exponentials is the greatest element so far, and the sum of exp(v - greatest), or of exp(v)
// before there is a greatest element.
struct exponentials {
	float top;
	double sum;
	__device__ float base() const { return top == -INFINITY ? 0 : top; }
	__device__ void raise(float to) {
		if (to > top) {
			sum *= expf(top - to);
			top = to;
		}
	}
};

// exponentials_of returns the exponentials of a thread's share of a row.
static __device__ __noinline__ exponentials exponentials_of(const bfloat16 *row, u64 n, u64 apart, u64 first, u64 step) {
	exponentials e = {-INFINITY, 0};
	if (apart == 1 && n % 8 == 0 && aligned(row)) {
		// Two loads are in flight at once.
		for (u64 u = first; u < n / 8; u += 2 * step) {
			bool more = u + step < n / 8;
			eight a = ((const eight *)row)[u], b = ((const eight *)row)[more ? u + step : u];
			float top = -INFINITY, part = 0, rest = 0;
#pragma unroll
			for (int k = 0; k < 8; k++)
				top = fmaxf(top, fmaxf((float)a.v[k], (float)b.v[k]));
			e.raise(top);
			float base = e.base();
#pragma unroll
			for (int k = 0; k < 8; k++) {
				part += expf((float)a.v[k] - base);
				rest += expf((float)b.v[k] - base);
			}
			e.sum += more ? part + rest : part;
		}
		return e;
	}
	for (u64 j = first; j < n; j += step) {
		float v = row[j * apart];
		e.raise(v);
		e.sum += expf(v - e.base());
	}
	return e;
}

// joined returns the exponentials of a whole row to each of its threads.
template <bool narrow> static __device__ exponentials joined(const bfloat16 *row, const rows &r, const share<narrow> &o) {
	exponentials e = exponentials_of(row, r.cols, r.inner, o.first(), o.step());
	e.raise((float)o.max(e.top));
	e.sum = o.sum(e.sum);
	return e;
}

extern "C" __global__ void softmax_bf16(bfloat16 *dst, const bfloat16 *x, rows r) {
	__shared__ double s[33];
	ROWS(i, r) {
		u64 at = r.start(i);
		exponentials e = joined<false>(x + at, r, {s});
		float by = (float)(1 / e.sum);
		rewrite(dst + at, x + at, r.cols, r.inner, threadIdx.x, blockDim.x, [&](u64, float v) { return expf(v - e.top) * by; });
	}
}

extern "C" __global__ void log_softmax_bf16(bfloat16 *dst, const bfloat16 *x, rows r) {
	__shared__ double s[33];
	ROWS(i, r) {
		u64 at = r.start(i);
		exponentials e = joined<false>(x + at, r, {s});
		float less = (float)log(e.sum);
		rewrite(dst + at, x + at, r.cols, r.inner, threadIdx.x, blockDim.x, [&](u64, float v) { return v - e.top - less; });
	}
}

extern "C" __global__ void softmax_grad_bf16(bfloat16 *dst, const bfloat16 *dy, const bfloat16 *y, rows r) {
	__shared__ double s[33];
	ROWS(i, r) {
		const bfloat16 *g = dy + r.start(i);
		double own = 0;
		walk(y + r.start(i), r.cols, r.inner, threadIdx.x, blockDim.x, [&](u64 j, float v) { own += v * (float)g[j * r.inner]; }, [] {});
		double dot = block_sum(own, s);
		rewrite(dst + r.start(i), y + r.start(i), r.cols, r.inner, threadIdx.x, blockDim.x, [&](u64 j, float v) { return (float)(v * ((double)(float)g[j * r.inner] - dot)); });
	}
}

extern "C" __global__ void log_softmax_grad_bf16(bfloat16 *dst, const bfloat16 *dy, const bfloat16 *y, rows r) {
	__shared__ double s[33];
	ROWS(i, r) {
		const bfloat16 *g = dy + r.start(i);
		double own = 0;
		walk(g, r.cols, r.inner, threadIdx.x, blockDim.x, [&](u64, float v) { own += v; }, [] {});
		double sum = block_sum(own, s);
		rewrite(dst + r.start(i), y + r.start(i), r.cols, r.inner, threadIdx.x, blockDim.x, [&](u64 j, float v) { return (float)((double)(float)g[j * r.inner] - expf(v) * sum); });
	}
}

// surprise is the loss of a row. It sets *of for a row that counts.
template <bool narrow, class L> static __device__ double surprise(const bfloat16 *logits, const L *labels, const float *weights, u64 i, const share<narrow> &o, const entropy &e, row_sum *of) {
	i64 label = labels[i];
	if (label == e.ignore)
		return 0;
	if (no_class(label, e))
		return NAN;
	const bfloat16 *row = logits + e.r.start(i);
	exponentials all = joined(row, e.r, o);
	*of = {all.top, all.sum};
	double top = all.top, less = log(all.sum);
	double own = top - (double)(float)row[label * e.r.inner] + less;
	if (weights)
		own *= weights[label];
	if (e.smoothing == 0)
		return own;
	double spread = 0;
	walk(row, e.r.cols, e.r.inner, o.first(), o.step(), [&](u64 j, float v) { spread += (weights ? weights[j] : 1) * (top - v + less); }, [] {});
	return (1 - e.smoothing) * own + e.smoothing / (double)e.r.cols * o.sum(spread);
}

// slopes sets a row's gradient. scale is the gradient of the loss over the divisor of the losses.
template <bool narrow> static __device__ __noinline__ void slopes(bfloat16 *to, const bfloat16 *row, i64 label, const float *weights, double scale, double spread, const row_sum &of, const share<narrow> &o, const entropy &e) {
	u64 first = o.first(), step = o.step();
	if (label == e.ignore || no_class(label, e))
		return rewrite(to, row, e.r.cols, e.r.inner, first, step, [](u64, float) { return 0.f; });
	double even = e.smoothing / (double)e.r.cols, hit = scale * (1 - e.smoothing) * (weights ? weights[label] : 1), scaled = (hit + scale * spread) / of.sum;
	float top = (float)of.top, by = (float)scaled, less = (float)hit;
	if (e.smoothing == 0)
		return rewrite(to, row, e.r.cols, e.r.inner, first, step, [&](u64 j, float v) {
			v = expf(v - top) * by;
			return j == (u64)label ? v - less : v;
		});
	rewrite(to, row, e.r.cols, e.r.inner, first, step, [&](u64 j, float x) {
		double v = expf(x - top) * scaled - scale * even * (weights ? weights[j] : 1);
		return (float)(j == (u64)label ? v - hit : v);
	});
}

#define LABELS(L, l) \
	CROSS_ENTROPY(cross_entropy, bfloat16, bf16, float, L, l, true) \
	CROSS_ENTROPY(cross_entropy_block, bfloat16, bf16, float, L, l, false)
LABELS(int, i32)
LABELS(i64, i64)

// entropy_grad: a row has one of the 8 warps of a block if narrow is set, otherwise a block. per
// points to the divisor of the losses; null means 1. If each is set, dloss has an element per row.
// sums, unless it is null, has the rows' sums.
template <bool narrow, class L>
static __device__ void entropy_grad(bfloat16 *dst, const bfloat16 *logits, const L *labels, const float *weights, const float *dloss, const row_sum *sums, const double *per, bool each, const entropy &e) {
	__shared__ double s[33];
	double scale = each ? 0 : (double)*dloss / (per ? *per : 1), spread = spread_of(weights, e, s);
	share<narrow> o = {s};
	SHARED_ROWS(i, o, e.r) {
		u64 at = e.r.start(i);
		if (each)
			scale = dloss[i];
		row_sum of;
		if (sums) {
			of = sums[i];
		} else {
			exponentials all = joined(logits + at, e.r, o);
			of = {all.top, all.sum};
		}
		slopes(dst + at, logits + at, labels[i], weights, scale, spread, of, o, e);
	}
}

#define ENTROPY_GRAD(name, L, l, narrow) \
	extern "C" __global__ void name##_##l##_bf16(bfloat16 *dst, const bfloat16 *logits, const L *labels, const float *weights, const float *dloss, \
		const row_sum *sums, const double *per, i64 each, entropy e) { \
		entropy_grad<narrow>(dst, logits, labels, weights, dloss, sums, per, each, e); \
	}
#define LABEL_GRADS(L, l) ENTROPY_GRAD(cross_entropy_grad, L, l, true) ENTROPY_GRAD(cross_entropy_grad_block, L, l, false)
LABEL_GRADS(int, i32)
LABEL_GRADS(i64, i64)
