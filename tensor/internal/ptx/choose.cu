// Choices between elements of two arrays, and their gradients.

#include "meeting.h"

// choose: a null a or b stands for zeros.
#define CHOOSE(C, c, E, size) \
	extern "C" __global__ void choose_##c##_##size(E *dst, const C *cond, const E *a, const E *b, u64 n, meeting<3> m) { \
		EACH(i, n) { \
			bool first = cond[m.at(0, i)] != 0; \
			const E *from = first ? a : b; \
			dst[i] = from ? from[m.at(first ? 1 : 2, i)] : (E)0; \
		} \
	}
#define CHOICES(E, size) CHOOSE(unsigned char, u8, E, size) CHOOSE(int, i32, E, size) CHOOSE(i64, i64, E, size)
CHOICES(unsigned char, 1)
CHOICES(unsigned short, 2)
CHOICES(unsigned int, 4)
CHOICES(u64, 8)

#define EXTREME_GRAD(T, t) \
	extern "C" __global__ void extreme_grad_##t(T *dst, const T *dy, const T *a, const T *b, u64 n, int greatest, meeting<2> m) { \
		EACH(i, n) { \
			T x = a[m.at(0, i)], y = b[m.at(1, i)], v = dy[i]; \
			dst[i] = x == y ? v / 2 : (greatest ? x < y : x > y) ? (T)0 : v; \
		} \
	}
FLOATS(EXTREME_GRAD)
