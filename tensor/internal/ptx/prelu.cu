// PReLU: a learnt slope for negative numbers, one for all or one per channel.

#include "kernels.h"

// channels is plan.Channels.
struct channels {
	u64 n, inner;
	__device__ u64 of(u64 i) const { return n == 1 ? 0 : divide(i, inner) % n; }
};

#define PRELU(T, t) \
	extern "C" __global__ void prelu_##t(T *y, const T *x, const T *weight, u64 n, channels c) { \
		EACH(i, n) { \
			sums<T>::type v = (sums<T>::type)x[i]; \
			y[i] = (T)(v > 0 ? v : v * (sums<T>::type)weight[c.of(i)]); \
		} \
	} \
	extern "C" __global__ void prelu_grad_##t(T *dx, const T *dy, const T *x, const T *weight, u64 n, channels c) { \
		EACH(i, n) { \
			sums<T>::type g = (sums<T>::type)dy[i]; \
			dx[i] = (T)((sums<T>::type)x[i] > 0 ? g : g * (sums<T>::type)weight[c.of(i)]); \
		} \
	}
FLOATS(PRELU)
PRELU(bfloat16, bf16)

// prelu_weight_grad: one block per channel, or per part of its elements. There is a ticket per
// channel.
#define PRELU_WEIGHT_GRAD(T, t) \
	extern "C" __global__ void prelu_weight_grad_##t(T *dweight, const T *dy, const T *x, u64 n, double *partial, unsigned *tickets, u64 parts, channels c) { \
		__shared__ double s[33]; \
		u64 all = n / c.n; \
		for (u64 at = blockIdx.x; at < c.n * parts; at += gridDim.x) { \
			u64 k = at % c.n, part = at / c.n, to = all * (part + 1) / parts; \
			total<T> own; \
			for (u64 l = all * part / parts + threadIdx.x; l < to; l += blockDim.x) { \
				u64 row = divide(l, c.inner), i = (row * c.n + k) * c.inner + l - row * c.inner; \
				double v = (double)x[i]; \
				if (!(v > 0)) \
					own.add(v * (double)dy[i]); \
			} \
			double sum = block_sum(own.value(), s); \
			if (parts > 1) { \
				if (threadIdx.x == 0) \
					partial[part * c.n + k] = sum; \
				if (!comes_last(tickets + k, parts)) \
					continue; \
				total<double> sums_of_all; \
				for (u64 p = threadIdx.x; p < parts; p += blockDim.x) \
					sums_of_all.add(partial[p * c.n + k]); \
				sum = block_sum(sums_of_all.value(), s); \
			} \
			if (threadIdx.x == 0) \
				dweight[k] = (T)(sums<T>::type)sum; \
		} \
	}
FLOATS(PRELU_WEIGHT_GRAD)
PRELU_WEIGHT_GRAD(bfloat16, bf16)
