// Optimisers: one launch for all parameters. blockIdx.y is the parameter's number. A parameter's
// own numbers are arguments or, if the step is captured, in device memory: live points to a row of
// them for each parameter, or is 0. The indices of the numbers are generated from kernel.Rules.

#include "kernels.h"
#include "rules_gen.h"

enum { max_parameters = 48 };

template <int OWN> struct parameter {
	u64 p, g, state[3], n; // absent arrays are 0
	double own[OWN];
};

template <int OWN> struct parameters {
	u64 live;
	double shared[8];
	parameter<OWN> at[max_parameters];
};

// Each product and sum is rounded separately, as on the host.
static __device__ float mul(float a, float b) { return __fmul_rn(a, b); }
static __device__ double mul(double a, double b) { return __dmul_rn(a, b); }
static __device__ float add(float a, float b) { return __fadd_rn(a, b); }
static __device__ double add(double a, double b) { return __dadd_rn(a, b); }

// decayed is the gradient d plus the decay of a parameter. Without decay it is d, because 0 times
// an infinite parameter is NaN.
template <class T> static __device__ T decayed(T d, T decay, T p) { return decay == 0 ? d : add(d, mul(decay, p)); }

// lerp is from + (to - from) by, computed from the nearer end, as in PyTorch. So it is to if by is
// 1, however large from is.
template <class T> static __device__ T lerp(T from, T to, T by) {
	return by < (T)0.5 ? add(from, mul(add(to, -from), by)) : add(to, mul(add(to, -from), add(by, (T)-1)));
}

// A rule updates a parameter p and its state s from the gradient g, with the shared numbers n and
// its own. has indicates which of the states exist.
#define RULE(name) \
	template <class T> static __device__ void name(const double *n, const double *own, T &p, T g, T *s, const bool *has)
#define N(name) ((T)n[name])
#define OWN(name) ((T)own[name])

RULE(sgd) {
	T d = decayed(mul(N(sgd_sign), g), N(sgd_decay), p);
	if (has[0]) {
		s[0] = own[sgd_first] != 0 ? d : add(mul(OWN(sgd_momentum), s[0]), mul(N(sgd_keep), d));
		d = n[sgd_nesterov] != 0 ? add(d, mul(OWN(sgd_momentum), s[0])) : s[0];
	}
	p = add(p, -mul(OWN(sgd_rate), d));
}

RULE(adam) {
	T w = mul(p, OWN(adam_shrink)), d = decayed(mul(N(adam_sign), g), N(adam_decay), w);
	s[0] = lerp(s[0], d, OWN(adam_c1));
	s[1] = add(mul(s[1], N(adam_beta2)), mul(mul(N(adam_c2), d), d));
	T v = s[1];
	if (has[2])
		s[2] = v = s[2] > v || s[2] != s[2] ? s[2] : v;
	p = add(w, -(mul(OWN(adam_size), s[0]) / add((T)sqrt(v) / OWN(adam_correction), N(adam_eps))));
}

RULE(rmsprop) {
	T d = decayed(mul(N(rmsprop_sign), g), N(rmsprop_decay), p);
	T v = s[0] = add(mul(s[0], N(rmsprop_alpha)), mul(mul(N(rmsprop_c), d), d));
	if (has[1]) {
		s[1] = lerp(s[1], d, N(rmsprop_c));
		v = add(v, -mul(s[1], s[1]));
	}
	T by = add((T)sqrt(v), N(rmsprop_eps));
	if (has[2]) {
		s[2] = add(mul(OWN(rmsprop_momentum), s[2]), d / by);
		p = add(p, -mul(OWN(rmsprop_rate), s[2]));
	} else {
		p = add(p, -(mul(OWN(rmsprop_rate), d) / by));
	}
}

RULE(adagrad) {
	T d = decayed(mul(N(adagrad_sign), g), N(adagrad_decay), p);
	s[0] = add(s[0], mul(d, d));
	p = add(p, -(mul(OWN(adagrad_rate), d) / add((T)sqrt(s[0]), N(adagrad_eps))));
}

RULE(lion) {
	T d = mul(N(lion_sign), g), u = add(mul(N(lion_beta1), s[0]), mul(N(lion_c1), d));
	s[0] = add(mul(N(lion_beta2), s[0]), mul(N(lion_c2), d));
	p = add(mul(p, OWN(lion_shrink)), -mul(OWN(lion_rate), u > 0 ? (T)1 : u < 0 ? (T)-1 : u));
}

// A thread has all loads of four elements in flight before it writes the first.
enum { together = 4 };

// An edition is for parameters of T and gradients of G.
#define EDITION(rule, name, T, G) \
	extern "C" __global__ void name(parameters<rule##_own> a) { \
		const parameter<rule##_own> &q = a.at[blockIdx.y]; \
		double own[rule##_own]; \
		_Pragma("unroll") for (int l = 0; l < rule##_own; l++) own[l] = a.live ? ((const double *)a.live)[blockIdx.y * rule##_own + l] : q.own[l]; \
		T *p = (T *)q.p, *state[3] = {(T *)q.state[0], (T *)q.state[1], (T *)q.state[2]}; \
		const bool has[3] = {q.state[0] != 0, q.state[1] != 0, q.state[2] != 0}; \
		const G *g = (const G *)q.g; \
		for (u64 i = blockIdx.x * (u64)blockDim.x * together + threadIdx.x; i < q.n; i += gridDim.x * (u64)blockDim.x * together) { \
			T ps[together], gs[together], ss[together][3]; \
			_Pragma("unroll") for (int k = 0; k < together; k++) { \
				u64 j = i + k * blockDim.x; \
				bool in = j < q.n; \
				ps[k] = in ? p[j] : (T)0, gs[k] = in ? (T)g[j] : (T)0; \
				_Pragma("unroll") for (int l = 0; l < 3; l++) ss[k][l] = in && has[l] ? state[l][j] : (T)0; \
			} \
			_Pragma("unroll") for (int k = 0; k < together; k++) { \
				u64 j = i + k * blockDim.x; \
				if (j >= q.n) \
					break; \
				rule(a.shared, own, ps[k], gs[k], ss[k], has); \
				p[j] = ps[k]; \
				_Pragma("unroll") for (int l = 0; l < 3; l++) if (has[l]) state[l][j] = ss[k][l]; \
			} \
		} \
	}
#define EDITIONS(rule) EDITION(rule, rule##_f32, float, float) EDITION(rule, rule##_f64, double, double) EDITION(rule, rule##_grad_bf16, float, bfloat16)
RULES(EDITIONS)
