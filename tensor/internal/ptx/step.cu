// Optimisers: one launch for all parameters, blockIdx.y says which.

#include "kernels.h"

enum { max_parameters = 48 };

struct sgd_parameter {
	u64 p, g, buf, n; // buf may be 0
	i64 first;
};

struct sgd_parameters {
	double lr, momentum, keep, decay;
	i64 nesterov;
	sgd_parameter at[max_parameters];
};

// Each product and sum is rounded by itself, as on the host.
static __device__ float mul(float a, float b) { return __fmul_rn(a, b); }
static __device__ double mul(double a, double b) { return __dmul_rn(a, b); }
static __device__ float add(float a, float b) { return __fadd_rn(a, b); }
static __device__ double add(double a, double b) { return __dadd_rn(a, b); }

#define SGD(T, t) \
	extern "C" __global__ void sgd_##t(sgd_parameters s) { \
		const sgd_parameter &q = s.at[blockIdx.y]; \
		T *p = (T *)q.p, *buf = (T *)q.buf; \
		const T *g = (const T *)q.g; \
		T lr = (T)s.lr, momentum = (T)s.momentum, keep = (T)s.keep, decay = (T)s.decay; \
		EACH(i, q.n) { \
			T d = add(g[i], mul(decay, p[i])); \
			if (buf) { \
				T v = q.first ? d : add(mul(momentum, buf[i]), mul(keep, d)); \
				buf[i] = v; \
				d = s.nesterov ? add(d, mul(momentum, v)) : v; \
			} \
			p[i] = add(p[i], -mul(lr, d)); \
		} \
	}
FLOATS(SGD)

struct adam_parameter {
	u64 p, g, m, v, n;
	double step_size, correction;
};

struct adam_parameters {
	double shrink, decay, c1, b2, c2, eps;
	adam_parameter at[max_parameters];
};

#define ADAM(T, t) \
	extern "C" __global__ void adam_##t(adam_parameters s) { \
		const adam_parameter &q = s.at[blockIdx.y]; \
		T *p = (T *)q.p, *m = (T *)q.m, *v = (T *)q.v; \
		const T *g = (const T *)q.g; \
		T shrink = (T)s.shrink, decay = (T)s.decay, c1 = (T)s.c1, b2 = (T)s.b2, c2 = (T)s.c2, eps = (T)s.eps; \
		T step = (T)q.step_size, correction = (T)q.correction; \
		EACH(i, q.n) { \
			T w = mul(p[i], shrink), d = add(g[i], mul(decay, w)); \
			T mi = add(m[i], mul(add(d, -m[i]), c1)); \
			T vi = add(mul(v[i], b2), mul(mul(c2, d), d)); \
			m[i] = mi; \
			v[i] = vi; \
			p[i] = add(w, -(mul(step, mi) / add((T)sqrt(vi) / correction, eps))); \
		} \
	}
FLOATS(ADAM)
