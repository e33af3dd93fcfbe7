// Functions of one argument with up to two parameters, c and d, and their gradients, computed in R.
// f_NAME is the function of kernel.Functions. df_NAME is the gradient for dy and v, where v is the
// argument or the result. The list of functions is generated.

#pragma once

#include "kernels.h"
#include "functions_gen.h"

static const double tanh_scale = 0.79788456080286535588, tanh_cubic = 0.044715; // sqrt(2/pi)

// normal is the distribution function of the standard normal distribution, without cancellation for
// negative numbers.
template <class R> static __device__ R normal(R x) { return (R)0.5 * erfc(-x * (R)0.70710678118654752440); }

template <class R> static __device__ R logistic(R x) {
	if (x >= 0)
		return 1 / (1 + exp(-x));
	x = exp(x);
	return x / (1 + x);
}

// logistic_of_twice is the logistic function of 2u, (1 + tanh(u)) / 2, without cancellation.
// rest is 1 minus that.
template <class R> static __device__ R logistic_of_twice(R u, R *rest) {
	R e = exp(-2 * fabs(u)), more = 1 / (1 + e), less = e * more;
	*rest = u < 0 ? more : less;
	return u < 0 ? less : more;
}

#define F(name) template <class R> static __device__ R f_##name(R x, R c, R d)
#define DF(name) template <class R> static __device__ R df_##name(R dy, R v, R c, R d)

F(abs) { return fabs(x); }
DF(abs) { return v > 0 ? dy : v < 0 ? -dy : 0 * dy; }
F(sin) { return sin(x); }
DF(sin) { return dy * cos(v); }
F(cos) { return cos(x); }
DF(cos) { return dy * -sin(v); }
F(erf) { return erf(x); }
DF(erf) { return dy * ((R)1.12837916709551257390 * exp(-v * v)); } // 2/sqrt(pi)
F(rsqrt) { return 1 / sqrt(x); }
DF(rsqrt) { return dy * ((R)-0.5 * v * v * v); }
F(gelu) { return x * normal(x); }
// The factor is 1/sqrt(2 pi).
DF(gelu) { return dy * (normal(v) + v * exp((R)-0.5 * v * v) * (R)0.39894228040143267794); }
F(gelu_tanh) {
	R rest;
	return x * logistic_of_twice((R)tanh_scale * (x + (R)tanh_cubic * x * x * x), &rest);
}
DF(gelu_tanh) {
	R rest, t = logistic_of_twice((R)tanh_scale * (v + (R)tanh_cubic * v * v * v), &rest);
	return dy * (t + 2 * v * (t * rest) * ((R)tanh_scale * (1 + (R)(3 * tanh_cubic) * v * v)));
}
F(silu) { return x * logistic(x); }
DF(silu) {
	R t = logistic(v);
	return dy * (t * (1 + v * (1 - t)));
}
F(elu) { return x <= 0 ? c * expm1(x) : x; }
DF(elu) { return v <= 0 ? dy * (c * exp(v)) : dy; }
F(softplus) {
	R z = x * c;
	return z > d ? x : ((z != z || z > 0 ? z : 0) + log1p(exp(-fabs(z)))) / c;
}
DF(softplus) { return v * c > d ? dy : dy * logistic(v * c); }
F(leaky_relu) { return x > 0 ? x : x * c; }
DF(leaky_relu) { return v > 0 ? dy : dy * c; }
F(clamp) { // NaN stays NaN
	x = x < c ? c : x;
	return x > d ? d : x;
}
DF(clamp) { return v >= c && v <= d ? dy : 0; }
F(hardtanh) { return f_clamp(x, c, d); }
DF(hardtanh) { return v <= c || v >= d ? 0 : dy; }
F(logsigmoid) { return (x < 0 ? x : 0) - log1p(exp(-fabs(x))); } // log1p returns NaN for NaN
DF(logsigmoid) { return dy * logistic(-v); }
F(celu) { return x <= 0 ? c * expm1(x / c) : x; }
DF(celu) { return v <= 0 ? dy * exp(v / c) : dy; }
F(sign) { return (R)((x > 0) - (x < 0)); }
DF(sign) { return 0; }
F(floor) { return floor(x); }
DF(floor) { return 0; }
F(ceil) { return ceil(x); }
DF(ceil) { return 0; }
F(round) { return rint(x); } // ties to even
DF(round) { return 0; }
F(log1p) { return log1p(x); }
DF(log1p) { return dy / (1 + v); }
F(expm1) { return expm1(x); }
DF(expm1) { return dy * (v + 1); }

#undef F
#undef DF

#define VALUE(i, name) case i: return f_##name(x, c, d);
template <class R> static __device__ R function(int op, R x, R c, R d) {
	switch (op) { SLOPES(VALUE) }
	__trap(); // there is no such function
	return x;
}

#define SLOPE(i, name) case i: return df_##name(dy, v, c, d);
template <class R> static __device__ R function_grad(int op, R dy, R v, R c, R d) {
	switch (op) { SLOPES(SLOPE) }
	__trap();
	return dy;
}
