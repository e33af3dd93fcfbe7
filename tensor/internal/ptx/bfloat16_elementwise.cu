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

extern "C" __global__ void function_bf16(bfloat16 *dst, const bfloat16 *x, u64 n, int op, float c, float d) {
	if (op == FUNCTION_gelu_tanh)
		return map(dst, x, n, [](float v) { return f_gelu_tanh<float>(v, 0, 0); });
	if (op == FUNCTION_gelu)
		return map(dst, x, n, [](float v) { return v * normal(v); });
	EACH(i, n) dst[i] = (bfloat16)function<float>(op, x[i], c, d);
}

extern "C" __global__ void function_grad_bf16(bfloat16 *dst, const bfloat16 *dy, const bfloat16 *v, u64 n, int op, float c, float d) {
	if (op == FUNCTION_gelu_tanh)
		return map(dst, dy, v, n, [](float g, float x) { return df_gelu_tanh<float>(g, x, 0, 0); });
	if (op == FUNCTION_gelu)
		return map(dst, dy, v, n, [](float g, float x) { return function_grad<float>(FUNCTION_gelu, g, x, 0, 0); });
	EACH(i, n) dst[i] = (bfloat16)function_grad<float>(op, dy[i], v[i], c, d);
}
