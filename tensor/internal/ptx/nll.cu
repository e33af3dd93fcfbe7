// The negative log likelihood of rows of logarithms of probabilities.

#include "rows.h"

// surprise is the loss of a row.
template <class T, class L> static __device__ double surprise(const T *x, const L *labels, const T *weights, u64 i, const share<true> &, const entropy &e, row_sum *) {
	i64 label = labels[i];
	if (label == e.ignore)
		return 0;
	if (no_class(label, e))
		return NAN;
	return -(weights ? (double)weights[label] : 1) * (double)x[e.r.start(i) + label * e.r.inner];
}

// slopes is for a gradient in the same launch, which nll_loss does not compute.
template <class T> static __device__ void slopes(T *, const T *, i64, const T *, double, double, const row_sum &, const share<true> &, const entropy &) {}

// nll_loss_grad: per points to the divisor of the losses; null means 1. If each is set, dloss has
// an element per row.
#define NLL_LOSS(T, t, L, l) \
	CROSS_ENTROPY(nll_loss, T, t, T, L, l, true) \
	extern "C" __global__ void nll_loss_grad_##l##_##t(T *dst, const L *labels, const T *weights, const T *dloss, const double *per, i64 each, entropy e) { \
		EACH(i, e.r.n * e.r.cols) { \
			u64 outer = divide(i, e.r.cols * e.r.inner), rest = i - outer * e.r.cols * e.r.inner, class_of = divide(rest, e.r.inner); \
			u64 row = outer * e.r.inner + rest - class_of * e.r.inner; \
			i64 label = labels[row]; \
			double scale = each ? (double)dloss[row] : (double)*dloss / (per ? *per : 1); \
			dst[i] = label == (i64)class_of && label != e.ignore ? (T)(-scale * (weights ? (double)weights[label] : 1)) : (T)0; \
		} \
	}
#define LABELS(T, t) NLL_LOSS(T, t, int, i32) NLL_LOSS(T, t, i64, i64)
FLOATS(LABELS)
