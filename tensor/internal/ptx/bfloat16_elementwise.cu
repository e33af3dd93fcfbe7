// Elementwise functions of bfloat16, computed in float.

#include "bfloat16.h"
#include "function.h"

// The sums and products of kernel.Binary.
enum { ADD, SUB, MUL };

// flat is binary for operands of the same shape.
extern "C" __global__ void flat_bf16(bfloat16 *dst, const bfloat16 *a, const bfloat16 *b, u64 n, int op) {
	switch (op) {
	case ADD: return map(dst, a, b, n, [](float x, float y) { return x + y; });
	case SUB: return map(dst, a, b, n, [](float x, float y) { return x - y; });
	default: return map(dst, a, b, n, [](float x, float y) { return x * y; });
	}
}

// slope of GELU_TANH is twice the argument of its hyperbolic tangent: (1 + tanh(u))/2 is the
// sigmoid of 2u, which has no cancellation next to 1.
static __device__ float slope(float x) { return (float)(2 * tanh_scale) * (x + (float)tanh_cubic * x * x * x); }

extern "C" __global__ void function_bf16(bfloat16 *dst, const bfloat16 *x, u64 n, int op, float c, float d) {
	if (op == FUNCTION_gelu_tanh)
		return map(dst, x, n, [](float v) { return v == -INFINITY ? NAN : v / (1 + expf(-slope(v))); });
	if (op == FUNCTION_gelu)
		return map(dst, x, n, [](float v) { return v * normal(v); });
	EACH(i, n) dst[i] = (bfloat16)function<float>(op, x[i], c, d);
}

extern "C" __global__ void function_grad_bf16(bfloat16 *dst, const bfloat16 *dy, const bfloat16 *v, u64 n, int op, float c, float d) {
	if (op == FUNCTION_gelu_tanh)
		return map(dst, dy, v, n, [](float g, float x) {
			float e = expf(-fabsf(slope(x))), more = 1 / (1 + e), less = e / (1 + e), own = x < 0 ? less : more;
			return g * (own + x * (more * less) * ((float)(2 * tanh_scale) * (1 + (float)(3 * tanh_cubic) * x * x)));
		});
	if (op == FUNCTION_gelu)
		return map(dst, dy, v, n, [](float g, float x) { return function_grad<float>(FUNCTION_gelu, g, x, 0, 0); });
	EACH(i, n) dst[i] = (bfloat16)function_grad<float>(op, dy[i], v[i], c, d);
}
