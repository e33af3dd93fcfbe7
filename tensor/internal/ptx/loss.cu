// Losses of elements and their targets.

#include "kernels.h"

// The losses in the order of kernel.Loss.
enum { MSE, L1, HUBER, BCE, KL, KL_LOG };

static __device__ double softplus(double x) { return (x != x || x > 0 ? x : 0) + log1p(exp(-fabs(x))); }

static __device__ double sigmoid(double x) {
	if (x >= 0)
		return 1 / (1 + exp(-x));
	x = exp(x);
	return x / (1 + x);
}

// pairs holds the operands: elements, targets, and two weights, either of which may be null.
template <class T> struct pairs {
	const T *x, *t, *weight, *pos;
	i64 op;
	double delta, divisor;

	__device__ double loss(u64 i) const {
		double v = x[i], u = t[i], d = v - u;
		switch (op) {
		case MSE: return d * d;
		case L1: return fabs(d);
		case HUBER:
			d = fabs(d);
			return d >= delta ? delta * (d - 0.5 * delta) : 0.5 * d * d;
		case KL: return (u == 0 ? 0 : u * log(u)) - u * v;
		case KL_LOG: return exp(u) * (u - v);
		}
		double w = weight ? (double)weight[i] : 1, some = softplus(-v);
		// Without pos the factor is left out, because 0 times an infinite target is NaN.
		return w * ((1 - u) * v + (pos ? (1 + ((double)pos[i] - 1) * u) * some : some));
	}

	// slope is the derivative with respect to the element or the target.
	__device__ double slope(u64 i, bool target) const {
		double v = x[i], u = t[i];
		if (op == BCE) {
			double w = weight ? (double)weight[i] : 1, p = pos ? (double)pos[i] : 1;
			if (target)
				return w * (pos ? p * softplus(-v) - softplus(v) : -v);
			return w * (pos ? (p * u + 1 - u) * sigmoid(v) - p * u : sigmoid(v) - u);
		}
		if (op == KL)
			return target ? log(u) + u / u - v : -u; // as PyTorch, NaN for a derivative by 0
		if (op == KL_LOG)
			return target ? exp(u) * (u - v) + exp(u) : -exp(u);
		double d = target ? u - v : v - u;
		if (op == MSE)
			return 2 * d;
		if ((op == HUBER && d > -delta && d < delta) || d != d || d == 0)
			return d;
		return copysign(op == L1 ? 1 : delta, d);
	}
};

// loss: each block adds some of the losses, and the last block adds the sums of all. _each: no sum.
#define LOSS(T, t) \
	extern "C" __global__ void loss_##t(T *dst, u64 n, double *part, unsigned *ticket, pairs<T> p) { \
		__shared__ double s[33]; \
		total<T> own; \
		EACH(i, n) own.add(p.loss(i)); \
		double sum = block_sum(own.value(), s); \
		if (gridDim.x > 1) { \
			if (threadIdx.x == 0) \
				part[blockIdx.x] = sum; \
			if (!comes_last(ticket, gridDim.x)) \
				return; \
			total<T> all; \
			for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) \
				all.add(part[i]); \
			sum = block_sum(all.value(), s); \
		} \
		if (threadIdx.x == 0) \
			*dst = (T)(sum / p.divisor); \
	} \
	extern "C" __global__ void loss_each_##t(T *dst, u64 n, pairs<T> p) { EACH(i, n) dst[i] = (T)p.loss(i); } \
	extern "C" __global__ void loss_grad_##t(T *dst, const T *dloss, u64 n, i64 each, i64 target, pairs<T> p) { \
		EACH(i, n) dst[i] = (T)((double)dloss[each ? i : 0] / p.divisor * p.slope(i, target)); \
	}
FLOATS(LOSS)
