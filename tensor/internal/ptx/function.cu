// Functions of one argument with parameters, and their gradients.

#include "function.h"

// some are the elements that a thread loads at a time.
template <class T> struct __align__(16) some { T v[16 / sizeof(T)]; };

// map sets dst[i] to f(v[i], dy[i]); dy may be null. A thread has one of few elements.
template <class T, class F> static __device__ void map(T *dst, const T *dy, const T *v, u64 n, F f) {
	enum { at_once = 16 / sizeof(T) };
	u64 all = n < 1 << 20 || ((size_t)dst | (size_t)dy | (size_t)v) % 16 ? 0 : n / at_once;
	EACH(u, all) {
		some<T> x = ((const some<T> *)v)[u], g = dy ? ((const some<T> *)dy)[u] : x;
#pragma unroll
		for (int k = 0; k < at_once; k++)
			x.v[k] = (T)f((double)x.v[k], (double)g.v[k]);
		((some<T> *)dst)[u] = x;
	}
	EACH(i, n - at_once * all) {
		u64 at = at_once * all + i;
		dst[at] = (T)f((double)v[at], dy ? (double)dy[at] : 0);
	}
}

#define FUNCTION(T, t) \
	extern "C" __global__ void function_##t(T *dst, const T *x, u64 n, int op, T c, T d) { \
		if (op == FUNCTION_gelu_tanh) \
			return map(dst, (const T *)0, x, n, [](double v, double) { return f_gelu_tanh<double>(v, 0, 0); }); \
		EACH(i, n) dst[i] = (T)function<double>(op, x[i], c, d); \
	} \
	extern "C" __global__ void function_grad_##t(T *dst, const T *dy, const T *v, u64 n, int op, T c, T d) { \
		if (op == FUNCTION_gelu_tanh) \
			return map(dst, dy, v, n, [](double x, double g) { return df_gelu_tanh<double>(g, x, 0, 0); }); \
		EACH(i, n) dst[i] = (T)function_grad<double>(op, dy[i], v[i], c, d); \
	}
FLOATS(FUNCTION)
