// Copies between arrays of any strides, by the size of an element: permutations, ranges,
// concatenations, padding.

#include "kernels.h"

// walk is plan.Placement: the dimensions of a loop, outermost first, and the strides of both
// arrays in elements.
struct walk {
	i64 n, dims[max_dims], dst[max_dims], src[max_dims];
};

#define PLACE(T, name) \
	extern "C" __global__ void place_##name(T *dst, const T *src, u64 n, walk w) { \
		EACH(i, n) dst[offset(i, w.n, w.dims, w.dst)] = src[offset(i, w.n, w.dims, w.src)]; \
	}
PLACE(unsigned char, 1)
PLACE(unsigned short, 2)
PLACE(unsigned int, 4)
PLACE(u64, 8)

// pad: each row of dst is a row of src, with value before and after it.
#define PAD(T, name) \
	extern "C" __global__ void pad_##name(T *dst, const T *src, T value, u64 n, u64 row, u64 start, u64 length) { \
		EACH(i, n) { \
			u64 r = divide(i, row), c = i - r * row - start; \
			dst[i] = c < length ? src[r * length + c] : value; \
		} \
	}
PAD(unsigned char, 1)
PAD(unsigned short, 2)
PAD(unsigned int, 4)
PAD(u64, 8)
