// Functions of one argument with parameters, and their gradients.

#include "kernels.h"

// The functions in the order of kernel.Function.
enum { ABS, SIN, COS, ERF, RSQRT, GELU, GELU_TANH, SILU, ELU, SOFTPLUS, LEAKY_RELU, HARDTANH, LOGSIGMOID, CLAMP };

static const double tanh_scale = 0.79788456080286535588, tanh_cubic = 0.044715; // sqrt(2/pi)

// normal is the distribution function of the standard normal distribution, without cancellation for negative numbers.
static __device__ double normal(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }

static __device__ double sigmoid(double x) {
	if (x >= 0)
		return 1 / (1 + exp(-x));
	x = exp(x);
	return x / (1 + x);
}

static __device__ double function(int op, double x, double c, double d) {
	switch (op) {
	case ABS: return fabs(x);
	case SIN: return sin(x);
	case COS: return cos(x);
	case ERF: return erf(x);
	case RSQRT: return 1 / sqrt(x);
	case GELU: return x * normal(x);
	case GELU_TANH: return 0.5 * x * (1 + tanh(tanh_scale * (x + tanh_cubic * x * x * x)));
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
static __device__ double function_grad(int op, double dy, double v, double c, double d) {
	double t;
	switch (op) {
	case ABS: return v > 0 ? dy : v < 0 ? -dy : 0 * dy;
	case SIN: return dy * cos(v);
	case COS: return dy * -sin(v);
	case ERF: return dy * (1.12837916709551257390 * exp(-v * v)); // 2/sqrt(pi)
	case RSQRT: return dy * (-0.5 * v * v * v);
	case GELU: return dy * (normal(v) + v * exp(-0.5 * v * v) * 0.39894228040143267794); // 1/sqrt(2 pi)
	case GELU_TANH:
		t = tanh(tanh_scale * (v + tanh_cubic * v * v * v));
		return dy * (0.5 * (1 + t) + 0.5 * v * ((1 - t) * (1 + t)) * (tanh_scale * (1 + 3 * tanh_cubic * v * v)));
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

#define FUNCTION(T, t) \
	extern "C" __global__ void function_##t(T *dst, const T *x, u64 n, int op, T c, T d) { \
		EACH(i, n) dst[i] = (T)function(op, x[i], c, d); \
	} \
	extern "C" __global__ void function_grad_##t(T *dst, const T *dy, const T *v, u64 n, int op, T c, T d) { \
		EACH(i, n) dst[i] = (T)function_grad(op, dy[i], v[i], c, d); \
	}
FLOATS(FUNCTION)
