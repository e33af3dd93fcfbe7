// Optimisers: one launch for all parameters, blockIdx.y says which. A parameter's own numbers come with the arguments or, where the step is
// captured, from device memory: live has a row of them for each parameter, or is 0. The numbers are those of package plan.

#include "kernels.h"

enum { max_parameters = 48 };

// own is the numbers of a parameter.
template <class Q> static __device__ const double *own(u64 live, const Q &q) {
	return live ? (const double *)live + blockIdx.y * (sizeof(q.own) / 8) : q.own;
}

struct sgd_parameter {
	u64 p, g, buf, n; // buf may be 0
	double own[3];    // rate, momentum, whether it is the first
};

struct sgd_parameters {
	u64 live;
	double keep, decay, sign;
	i64 nesterov;
	sgd_parameter at[max_parameters];
};

// Each product and sum is rounded by itself, as on the host.
static __device__ float mul(float a, float b) { return __fmul_rn(a, b); }
static __device__ double mul(double a, double b) { return __dmul_rn(a, b); }
static __device__ float add(float a, float b) { return __fadd_rn(a, b); }
static __device__ double add(double a, double b) { return __dadd_rn(a, b); }

// decayed is the gradient d with the decay of a parameter: without it d itself, because 0 times an infinite parameter is NaN.
template <class T> static __device__ T decayed(T d, T decay, T p) { return decay == 0 ? d : add(d, mul(decay, p)); }

// lerp is from + (to - from) by, from the nearer end, as PyTorch's: of 1 it is to, however large from is.
template <class T> static __device__ T lerp(T from, T to, T by) {
	return by < (T)0.5 ? add(from, mul(add(to, -from), by)) : add(to, mul(add(to, -from), add(by, (T)-1)));
}

// An edition is for parameters of T and gradients of G.
#define EDITIONS(def, name) def(name##_f32, float, float) def(name##_f64, double, double) def(name##_grad_bf16, float, bfloat16)

#define SGD(name, T, G) \
	extern "C" __global__ void name(sgd_parameters s) { \
		const sgd_parameter &q = s.at[blockIdx.y]; \
		T *p = (T *)q.p, *buf = (T *)q.buf; \
		const G *g = (const G *)q.g; \
		const double *n = own(s.live, q); \
		T lr = (T)n[0], momentum = (T)n[1], keep = (T)s.keep, decay = (T)s.decay, sign = (T)s.sign; \
		bool first = n[2] != 0; \
		EACH(i, q.n) { \
			T d = decayed(mul(sign, (T)g[i]), decay, p[i]); \
			if (buf) { \
				T v = first ? d : add(mul(momentum, buf[i]), mul(keep, d)); \
				buf[i] = v; \
				d = s.nesterov ? add(d, mul(momentum, v)) : v; \
			} \
			p[i] = add(p[i], -mul(lr, d)); \
		} \
	}
EDITIONS(SGD, sgd)

struct adam_parameter {
	u64 p, g, m, v, greatest, n; // greatest may be 0
	double own[4];               // size, correction, shrink, c1
};

struct adam_parameters {
	u64 live;
	double b2, c2, eps, decay, sign;
	adam_parameter at[max_parameters];
};

// A thread has all of four elements on its way before it writes the first.
enum { together = 4 };

#define ADAM(name, T, G) \
	extern "C" __global__ void name(adam_parameters s) { \
		const adam_parameter &q = s.at[blockIdx.y]; \
		T *p = (T *)q.p, *m = (T *)q.m, *v = (T *)q.v, *greatest = (T *)q.greatest; \
		const G *g = (const G *)q.g; \
		const double *n = own(s.live, q); \
		T step = (T)n[0], correction = (T)n[1], shrink = (T)n[2], c1 = (T)n[3]; \
		T b2 = (T)s.b2, c2 = (T)s.c2, eps = (T)s.eps, decay = (T)s.decay, sign = (T)s.sign; \
		for (u64 i = blockIdx.x * (u64)blockDim.x * together + threadIdx.x; i < q.n; i += gridDim.x * (u64)blockDim.x * together) { \
			T ps[together], gs[together], ms[together], vs[together]; \
			_Pragma("unroll") for (int k = 0; k < together; k++) { \
				u64 j = i + k * blockDim.x; \
				bool in = j < q.n; \
				ps[k] = in ? p[j] : (T)0, gs[k] = in ? (T)g[j] : (T)0, ms[k] = in ? m[j] : (T)0, vs[k] = in ? v[j] : (T)0; \
			} \
			_Pragma("unroll") for (int k = 0; k < together; k++) { \
				u64 j = i + k * blockDim.x; \
				if (j >= q.n) \
					break; \
				T w = mul(ps[k], shrink), d = decayed(mul(sign, gs[k]), decay, w); \
				T mi = lerp(ms[k], d, c1); \
				T vi = add(mul(vs[k], b2), mul(mul(c2, d), d)); \
				m[j] = mi; \
				v[j] = vi; \
				if (greatest) { \
					vi = greatest[j] > vi || greatest[j] != greatest[j] ? greatest[j] : vi; \
					greatest[j] = vi; \
				} \
				p[j] = add(w, -(mul(step, mi) / add((T)sqrt(vi) / correction, eps))); \
			} \
		} \
	}
EDITIONS(ADAM, adam)

struct rmsprop_parameter {
	u64 p, g, v, mean, buf, n; // mean and buf may be 0
	double own[2];             // rate, momentum
};

struct rmsprop_parameters {
	u64 live;
	double alpha, c, eps, decay, sign;
	rmsprop_parameter at[max_parameters];
};

#define RMSPROP(T, t) \
	extern "C" __global__ void rmsprop_##t(rmsprop_parameters s) { \
		const rmsprop_parameter &q = s.at[blockIdx.y]; \
		T *p = (T *)q.p, *v = (T *)q.v, *mean = (T *)q.mean, *buf = (T *)q.buf; \
		const T *g = (const T *)q.g; \
		const double *n = own(s.live, q); \
		T lr = (T)n[0], momentum = (T)n[1], alpha = (T)s.alpha, c = (T)s.c, eps = (T)s.eps, decay = (T)s.decay, sign = (T)s.sign; \
		EACH(i, q.n) { \
			T d = decayed(mul(sign, g[i]), decay, p[i]); \
			T vi = add(mul(v[i], alpha), mul(mul(c, d), d)); \
			v[i] = vi; \
			if (mean) { \
				T mi = lerp(mean[i], d, c); \
				mean[i] = mi; \
				vi = add(vi, -mul(mi, mi)); \
			} \
			T by = add((T)sqrt(vi), eps); \
			if (buf) { \
				T b = add(mul(momentum, buf[i]), d / by); \
				buf[i] = b; \
				p[i] = add(p[i], -mul(lr, b)); \
			} else { \
				p[i] = add(p[i], -(mul(lr, d) / by)); \
			} \
		} \
	}
FLOATS(RMSPROP)

struct adagrad_parameter {
	u64 p, g, sum, n;
	double own[1]; // rate
};

struct adagrad_parameters {
	u64 live;
	double decay, eps, sign;
	adagrad_parameter at[max_parameters];
};

#define ADAGRAD(T, t) \
	extern "C" __global__ void adagrad_##t(adagrad_parameters s) { \
		const adagrad_parameter &q = s.at[blockIdx.y]; \
		T *p = (T *)q.p, *sum = (T *)q.sum; \
		const T *g = (const T *)q.g; \
		T rate = (T)own(s.live, q)[0], decay = (T)s.decay, eps = (T)s.eps, sign = (T)s.sign; \
		EACH(i, q.n) { \
			T d = decayed(mul(sign, g[i]), decay, p[i]); \
			T all = add(sum[i], mul(d, d)); \
			sum[i] = all; \
			p[i] = add(p[i], -(mul(rate, d) / add((T)sqrt(all), eps))); \
		} \
	}
FLOATS(ADAGRAD)
