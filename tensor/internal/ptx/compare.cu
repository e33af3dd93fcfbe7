// Comparisons of broadcast elements.

#include "meeting.h"

// The comparisons in the order of kernel.Comparison.
enum { EQUAL, NOT_EQUAL, LESS, LESS_EQUAL };

template <class T> static __device__ bool compare(int op, T a, T b) {
	switch (op) {
	case EQUAL: return a == b;
	case NOT_EQUAL: return a != b;
	case LESS: return a < b;
	case LESS_EQUAL: return a <= b;
	}
	__trap(); // there is no such comparison
	return false;
}

#define COMPARE(T, t) \
	extern "C" __global__ void compare_##t(unsigned char *dst, const T *a, const T *b, u64 n, int op, meeting<2> m) { \
		EACH(i, n) dst[i] = compare<sums<T>::type>(op, a[m.at(0, i)], b[m.at(1, i)]); \
	}
FLOATS(COMPARE)
COMPARE(bfloat16, bf16)
COMPARE(int, i32)
COMPARE(i64, i64)
COMPARE(unsigned char, u8)
