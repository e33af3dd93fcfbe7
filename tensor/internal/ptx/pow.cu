// Powers of broadcast elements, and their gradients.

#include "meeting.h"

// pow_grad is the gradient of the base, which is 0 where the exponent is 0, or of the exponent,
// which is 0 where the base is 0 and the exponent is not negative.
#define POW(T, t) \
	extern "C" __global__ void pow_##t(T *dst, const T *a, const T *b, u64 n, meeting<2> m) { \
		EACH(i, n) dst[i] = (T)pow((double)a[m.at(0, i)], (double)b[m.at(1, i)]); \
	} \
	extern "C" __global__ void pow_grad_##t(T *dst, const T *dy, const T *a, const T *b, u64 n, int exponent, meeting<2> m) { \
		EACH(i, n) { \
			double d = dy[i], x = a[m.at(0, i)], y = b[m.at(1, i)]; \
			if (exponent) \
				d *= x == 0 && y >= 0 ? 0 : pow(x, y) * log(x); \
			else \
				d = y == 0 ? 0 : d * (y * pow(x, y - 1)); \
			dst[i] = (T)d; \
		} \
	}
FLOATS(POW)
