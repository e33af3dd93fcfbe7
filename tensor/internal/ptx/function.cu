// Functions of one argument with parameters, and their gradients.

#include "function.h"

#define FUNCTION(T, t) \
	extern "C" __global__ void function_##t(T *dst, const T *x, u64 n, int op, T c, T d) { \
		EACH(i, n) dst[i] = (T)function<double>(op, x[i], c, d); \
	} \
	extern "C" __global__ void function_grad_##t(T *dst, const T *dy, const T *v, u64 n, int op, T c, T d) { \
		EACH(i, n) dst[i] = (T)function_grad<double>(op, dy[i], v[i], c, d); \
	}
FLOATS(FUNCTION)
