// Transposes, and matrix products without a library.

#include "kernels.h"

enum { tile = 32 };

#define TRANSPOSE(T, t) \
	extern "C" __global__ void transpose_##t(T *dst, const T *x, u64 rows, u64 cols) { \
		__shared__ T s[tile][tile + 1]; \
		u64 down = (rows + tile - 1) / tile, across = (cols + tile - 1) / tile; \
		for (u64 at = blockIdx.x; at < down * across; at += gridDim.x) { \
			u64 r = at / across * tile, c = at % across * tile; \
			for (int i = threadIdx.y; i < tile; i += blockDim.y) \
				if (r + i < rows && c + threadIdx.x < cols) \
					s[i][threadIdx.x] = x[(r + i) * cols + c + threadIdx.x]; \
			__syncthreads(); \
			for (int i = threadIdx.y; i < tile; i += blockDim.y) \
				if (c + i < cols && r + threadIdx.x < rows) \
					dst[(c + i) * rows + r + threadIdx.x] = s[threadIdx.x][i]; \
			__syncthreads(); \
		} \
	}
FLOATS(TRANSPOSE)
TRANSPOSE(unsigned short, bf16)

// batches is plan.Placement: the dimensions of a batch, outermost first, and the strides of both
// factors in elements.
struct batches {
	i64 n, dims[max_dims], a[max_dims], b[max_dims];
};

// matmul is the product without a library, of count matrices. For bfloat16 a bias and ReLU are
// applied before the sum is rounded. Element (i,k) of A is a[i*ai+k*ak], and so on.
#define MATMUL(T, t) \
	extern "C" __global__ void matmul_##t(T *c, const T *a, const T *b, u64 m, u64 n, u64 k, u64 ai, u64 ak, u64 bk, u64 bj, u64 count, \
		const T *bias, int relu, batches w) { \
		typedef sums<T>::type W; \
		__shared__ W sa[tile][tile + 1], sb[tile][tile + 1]; \
		u64 down = (m + tile - 1) / tile, across = (n + tile - 1) / tile; \
		for (u64 z = blockIdx.y; z < count; z += gridDim.y) { \
			const T *za = a + offset(z, w.n, w.dims, w.a), *zb = b + offset(z, w.n, w.dims, w.b); \
			T *zc = c + z * m * n; \
			for (u64 at = blockIdx.x; at < down * across; at += gridDim.x) { \
				u64 i = at / across * tile, j = at % across * tile; \
				W sum[4] = {0, 0, 0, 0}; /* of the rows threadIdx.y + 8 q: a block is 32 by 8 threads */ \
				for (u64 l = 0; l < k; l += tile) { \
					for (int q = 0; q < 4; q++) { \
						int y = threadIdx.y + 8 * q, x = threadIdx.x; \
						sa[y][x] = i + y < m && l + x < k ? (W)za[(i + y) * ai + (l + x) * ak] : (W)0; \
						sb[y][x] = l + y < k && j + x < n ? (W)zb[(l + y) * bk + (j + x) * bj] : (W)0; \
					} \
					__syncthreads(); \
					W part[4] = {0, 0, 0, 0}; /* rounding errors grow with the number of tiles, not of products */ \
					for (int x = 0; x < tile; x++) \
						for (int q = 0; q < 4; q++) \
							part[q] += sa[threadIdx.y + 8 * q][x] * sb[x][threadIdx.x]; \
					for (int q = 0; q < 4; q++) \
						sum[q] += part[q]; \
					__syncthreads(); \
				} \
				for (int q = 0; q < 4; q++) { \
					if (bias && j + threadIdx.x < n) \
						sum[q] += (W)bias[j + threadIdx.x]; \
					if (relu && sum[q] < 0) \
						sum[q] = 0; \
					if (i + threadIdx.y + 8 * q < m && j + threadIdx.x < n) \
						zc[(i + threadIdx.y + 8 * q) * n + j + threadIdx.x] = (T)sum[q]; \
				} \
			} \
		} \
	}
FLOATS(MATMUL)
MATMUL(bfloat16, bf16)
