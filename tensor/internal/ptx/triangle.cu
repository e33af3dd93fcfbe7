// The triangles of matrices above and below a diagonal.

#include "kernels.h"

// triangle sets elements to 0 if their column minus row is on the other side of the diagonal.
#define TRIANGLE(E, size) \
	extern "C" __global__ void triangle_##size(E *dst, const E *x, u64 n, u64 rows, u64 cols, i64 diagonal, i64 upper) { \
		EACH(i, n) { \
			u64 row = divide(i, cols); \
			i64 at = (i64)(i - row * cols) - (i64)(row - divide(row, rows) * rows); \
			dst[i] = (upper ? at >= diagonal : at <= diagonal) ? x[i] : (E)0; \
		} \
	}
TRIANGLE(unsigned char, 1)
TRIANGLE(unsigned short, 2)
TRIANGLE(unsigned int, 4)
TRIANGLE(u64, 8)
