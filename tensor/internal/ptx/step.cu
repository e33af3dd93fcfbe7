// Optimisers: one launch for all parameters. A parameter has as many blocks as it needs: none if it
// is empty. Its own numbers are arguments or, if the step is captured, in device memory: live
// points to a row of them for each parameter, or is 0. The indices of the numbers are generated
// from kernel.Rules.

#include "rules_gen.h"
#include "vector.h"

enum {
	max_parameters = 48,
	threads = 256, // of a block
	together = 4,  // elements of a thread, whose loads are all in flight before it writes the first
};

template <int OWN> struct parameter {
	u64 p, g, state[3], n; // absent arrays are 0
	double own[OWN];
};

template <int OWN> struct parameters {
	u64 live;
	double shared[7];
	unsigned first[max_parameters]; // the first block of each parameter, and ~0 after the last one
	parameter<OWN> at[max_parameters];
};

// parameter_of is the parameter of a block: the last one that begins at the block or before it.
// Only the second half of the comparisons waits for the first.
static __device__ unsigned parameter_of(const unsigned (&first)[max_parameters], unsigned block) {
	enum { step = 8 };
	unsigned from = 0, after = 0;
#pragma unroll
	for (int i = step; i < max_parameters; i += step)
		from += first[i] <= block ? step : 0;
#pragma unroll
	for (int i = 1; i < step; i++)
		after += first[from + i] <= block;
	return from + after;
}

// elements are those of a thread. In a pack they are neighbours, otherwise one of each group of
// threads.
struct elements {
	bool packed;
	u64 at, n;
	template <class T> __device__ pack<T, together> load(const T *p) const {
		if (packed)
			return *(const pack<T, together> *)(p + at);
		pack<T, together> v;
#pragma unroll
		for (int k = 0; k < together; k++)
			v.v[k] = at + k * threads < n ? p[at + k * threads] : (T)0;
		return v;
	}
	template <class T> __device__ void store(T *p, const pack<T, together> &v) const {
		if (packed) {
			*(pack<T, together> *)(p + at) = v;
			return;
		}
#pragma unroll
		for (int k = 0; k < together; k++)
			if (at + k * threads < n)
				p[at + k * threads] = v.v[k];
	}
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

// An edition is for parameters of T and gradients of G. A block has packs if it is full and if all
// arrays are aligned.
#define EDITION(rule, name, T, G) \
	extern "C" __global__ void name(parameters<rule##_own> a) { \
		unsigned which = parameter_of(a.first, blockIdx.x); \
		const parameter<rule##_own> &q = a.at[which]; \
		u64 from = (u64)(blockIdx.x - a.first[which]) * (threads * together); \
		bool packed = from + threads * together <= q.n && (q.p | q.state[0] | q.state[1] | q.state[2]) % sizeof(pack<T, together>) == 0 && q.g % sizeof(pack<G, together>) == 0; \
		elements all = {packed, from + threadIdx.x * (packed ? together : 1), q.n}; \
		const bool has[3] = {q.state[0] != 0, q.state[1] != 0, q.state[2] != 0}; \
		pack<T, together> p = all.load((const T *)q.p), state[3] = {}; \
		pack<G, together> g = all.load((const G *)q.g); \
		_Pragma("unroll") for (int l = 0; l < 3; l++) if (has[l]) state[l] = all.load((const T *)q.state[l]); \
		double own[rule##_own]; \
		_Pragma("unroll") for (int l = 0; l < rule##_own; l++) own[l] = a.live ? ((const double *)a.live)[which * rule##_own + l] : q.own[l]; \
		_Pragma("unroll") for (int k = 0; k < together; k++) { \
			T s[3] = {state[0].v[k], state[1].v[k], state[2].v[k]}; \
			rule(a.shared, own, p.v[k], (T)g.v[k], s, has); \
			_Pragma("unroll") for (int l = 0; l < 3; l++) state[l].v[k] = s[l]; \
		} \
		all.store((T *)q.p, p); \
		_Pragma("unroll") for (int l = 0; l < 3; l++) if (has[l]) all.store((T *)q.state[l], state[l]); \
	}
#define EDITIONS(rule) EDITION(rule, rule##_f32, float, float) EDITION(rule, rule##_f64, double, double) EDITION(rule, rule##_grad_bf16, float, bfloat16)
RULES(EDITIONS)
