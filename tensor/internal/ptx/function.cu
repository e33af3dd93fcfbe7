// Functions of one argument with parameters, and their gradients.

#include "function.h"
#include "vector.h"

// packed is the number of elements from which on a thread has several. Of fewer, more threads
// compute the exponentials sooner.
enum { packed = 1 << 20 };

#define FUNCTION(T, t) \
	extern "C" __global__ void function_##t(T *dst, const T *x, u64 n, int op, T c, T d) { \
		if (op == FUNCTION_gelu_tanh) \
			return map_from(packed, n, [](T v) { return (T)f_gelu_tanh<double>(v, 0, 0); }, dst, x); \
		EACH(i, n) dst[i] = (T)function<double>(op, x[i], c, d); \
	} \
	extern "C" __global__ void function_grad_##t(T *dst, const T *dy, const T *v, u64 n, int op, T c, T d) { \
		if (op == FUNCTION_gelu_tanh) \
			return map_from(packed, n, [](T g, T x) { return (T)df_gelu_tanh<double>(g, x, 0, 0); }, dst, dy, v); \
		EACH(i, n) dst[i] = (T)function_grad<double>(op, dy[i], v[i], c, d); \
	}
FLOATS(FUNCTION)
