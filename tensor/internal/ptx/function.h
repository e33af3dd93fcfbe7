// Functions of one argument with parameters, and their gradients, computed in R.

#pragma once

#include "kernels.h"

// The functions in the order of kernel.Function.
enum { ABS, SIN, COS, ERF, RSQRT, GELU, GELU_TANH, SILU, ELU, SOFTPLUS, LEAKY_RELU, HARDTANH, LOGSIGMOID, CLAMP };

static const double tanh_scale = 0.79788456080286535588, tanh_cubic = 0.044715; // sqrt(2/pi)

// normal is the distribution function of the standard normal distribution, without cancellation for negative numbers.
template <class R> static __device__ R normal(R x) { return (R)0.5 * erfc(-x * (R)0.70710678118654752440); }

template <class R> static __device__ R sigmoid(R x) {
	if (x >= 0)
		return 1 / (1 + exp(-x));
	x = exp(x);
	return x / (1 + x);
}

template <class R> static __device__ R function(int op, R x, R c, R d) {
	switch (op) {
	case ABS: return fabs(x);
	case SIN: return sin(x);
	case COS: return cos(x);
	case ERF: return erf(x);
	case RSQRT: return 1 / sqrt(x);
	case GELU: return x * normal(x);
	case GELU_TANH: return (R)0.5 * x * (1 + tanh((R)tanh_scale * (x + (R)tanh_cubic * x * x * x)));
	case SILU: return x * sigmoid(x);
	case ELU: return x <= 0 ? c * expm1(x) : x;
	case SOFTPLUS: return x * c > d ? x : log1p(exp(x * c)) / c;
	case LEAKY_RELU: return x > 0 ? x : x * c;
	case LOGSIGMOID: return (x < 0 ? x : 0) - log1p(exp(-fabs(x))); // NaN is in the logarithm
	default: // HARDTANH and CLAMP keep NaN
		x = x < c ? c : x;
		return x > d ? d : x;
	}
}

// function_grad: v is the argument, or for RSQRT, LEAKY_RELU and HARDTANH the result.
template <class R> static __device__ R function_grad(int op, R dy, R v, R c, R d) {
	R t;
	switch (op) {
	case ABS: return v > 0 ? dy : v < 0 ? -dy : 0 * dy;
	case SIN: return dy * cos(v);
	case COS: return dy * -sin(v);
	case ERF: return dy * ((R)1.12837916709551257390 * exp(-v * v)); // 2/sqrt(pi)
	case RSQRT: return dy * ((R)-0.5 * v * v * v);
	case GELU: return dy * (normal(v) + v * exp((R)-0.5 * v * v) * (R)0.39894228040143267794); // 1/sqrt(2 pi)
	case GELU_TANH:
		t = tanh((R)tanh_scale * (v + (R)tanh_cubic * v * v * v));
		return dy * ((R)0.5 * (1 + t) + (R)0.5 * v * ((1 - t) * (1 + t)) * ((R)tanh_scale * (1 + (R)(3 * tanh_cubic) * v * v)));
	case SILU:
		t = sigmoid(v);
		return dy * (t * (1 + v * (1 - t)));
	case ELU: return v <= 0 ? dy * (c * exp(v)) : dy;
	case SOFTPLUS: return v * c > d ? dy : dy * sigmoid(v * c);
	case LEAKY_RELU: return v > 0 ? dy : dy * c;
	case HARDTANH: return v <= c || v >= d ? 0 : dy;
	case LOGSIGMOID: return dy * sigmoid(-v);
	default: return v >= c && v <= d ? dy : 0;
	}
}
