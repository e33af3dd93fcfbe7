// Attention without the matrix of scores. A block of 32 by 8 threads has a tile of 32 queries (for the gradient of keys and
// values, of 32 keys) and meets tiles of the others one after the other: the scores of a tile are in shared memory, and what
// softmax needs of those before in registers, see kernel.Attention. A warp has four whole rows of a tile. Each block does
// 64 columns of its result and finds the scores by itself, so that any number of columns has room. Nobody adds to what another
// block has: results are the same in every run.

#include "attention.h"

enum { tile = 32, slices = 2, no_mask = 0, float_mask = 1 };

template <class T> struct square { T at[tile][tile + 1]; };

// products adds to sum[i] the product of row threadIdx.y + 8i of a, of an rows, and row threadIdx.x of b, of bn rows.
template <class T> static __device__ void products(T *sum, const T *a, i64 arow, i64 an, const T *b, i64 brow, i64 bn, i64 inner, square<T> &sa, square<T> &sb) {
	for (i64 l = 0; l < inner; l += tile) {
		__syncthreads();
		for (int i = 0; i < 4; i++) {
			int y = threadIdx.y + 8 * i, x = threadIdx.x;
			sa.at[y][x] = y < an && l + x < inner ? a[y * arow + l + x] : (T)0;
			sb.at[y][x] = y < bn && l + x < inner ? b[y * brow + l + x] : (T)0;
		}
		__syncthreads();
		for (int x = 0; x < tile; x++)
			for (int i = 0; i < 4; i++)
				sum[i] += sa.at[threadIdx.y + 8 * i][x] * sb.at[threadIdx.x][x];
	}
}

// combine adds to acc[i] the sum over the rows of b, of which there are bn, of w times column c0 + threadIdx.x, of bc.
template <class T> static __device__ void combine(T *acc, const square<T> &w, const T *b, i64 brow, i64 bn, i64 c0, i64 bc, square<T> &sb) {
	__syncthreads();
	for (int i = 0; i < 4; i++) {
		int y = threadIdx.y + 8 * i;
		sb.at[y][threadIdx.x] = y < bn && c0 + threadIdx.x < bc ? b[y * brow + c0 + threadIdx.x] : (T)0;
	}
	__syncthreads();
	for (int x = 0; x < tile; x++)
		for (int i = 0; i < 4; i++)
			acc[i] += w.at[threadIdx.y + 8 * i][x] * sb.at[x][threadIdx.x];
}

// score is that of query i and key j, whose product is s; -INFINITY if the query does not see the key.
template <class T> static __device__ double score(const attention &a, T s, const void *mask, i64 at, i64 i, i64 j) {
	if (i >= a.l || j >= a.s || (a.causal && j > i))
		return -INFINITY;
	double v = (double)s * a.scale;
	if (a.masking == no_mask)
		return v;
	at += i * a.mrow + j * a.mcol;
	if (a.masking == float_mask)
		return v + (double)((const T *)mask)[at];
	return ((const unsigned char *)mask)[at] ? v : -INFINITY;
}

#define ATTENTION(T, t) \
	extern "C" __global__ void attention_##t(T *out, double *log_sums, const T *q, const T *k, const T *v, const void *mask, attention a) { \
		__shared__ square<T> sa, sb, w; \
		i64 c0 = (i64)blockIdx.z * slices * tile; \
		for (i64 z = blockIdx.y; z < a.batch; z += gridDim.y) \
			for (i64 row = (i64)blockIdx.x * tile; row < a.l; row += (i64)gridDim.x * tile) { \
				const T *zq = q + offset(z, a.n, a.dims, a.q) + row * a.qrow; \
				const T *zk = k + offset(z, a.n, a.dims, a.k), *zv = v + offset(z, a.n, a.dims, a.v); \
				i64 zm = offset(z, a.n, a.dims, a.m); \
				T acc[slices][4] = {}; \
				double top[4], sum[4] = {0, 0, 0, 0}; \
				for (int i = 0; i < 4; i++) \
					top[i] = -INFINITY; \
				for (i64 key = 0; key < a.s && !(a.causal && key >= row + tile); key += tile) { \
					T s[4] = {0, 0, 0, 0}; \
					products(s, zq, a.qrow, a.l - row, zk + key * a.krow, a.krow, a.s - key, a.e, sa, sb); \
					__syncthreads(); /* w is read by the last tile's sums */ \
					for (int i = 0; i < 4; i++) { \
						int y = threadIdx.y + 8 * i; \
						double d = score(a, s[i], mask, zm, row + y, key + threadIdx.x); \
						double greatest = fmax(top[i], warp_max(d)), base = seen(greatest), shrink = exp(top[i] - base); \
						double p = exp(d - base); \
						top[i] = greatest; \
						sum[i] = sum[i] * shrink + warp_sum(p); \
						for (int c = 0; c < slices; c++) \
							acc[c][i] *= (T)shrink; \
						w.at[y][threadIdx.x] = (T)p; \
					} \
					for (int c = 0; c < slices; c++) \
						if (c0 + c * tile < a.w) \
							combine(acc[c], w, zv + key * a.vrow, a.vrow, a.s - key, c0 + c * tile, a.w, sb); \
				} \
				T *zo = out + offset(z, a.n, a.dims, a.o); \
				for (int i = 0; i < 4; i++) { \
					i64 y = row + threadIdx.y + 8 * i; \
					for (int c = 0; c < slices; c++) { \
						i64 x = c0 + c * tile + threadIdx.x; \
						if (y < a.l && x < a.w) \
							zo[y * a.orow + x] = sum[i] == 0 ? (T)0 : (T)((double)acc[c][i] / sum[i]); \
					} \
					if (blockIdx.z == 0 && threadIdx.x == 0 && y < a.l) \
						log_sums[z * a.l + y] = seen(top[i]) + log(sum[i]); \
				} \
			} \
	}
FLOATS(ATTENTION)

// attention_grad_query sets the gradients of queries, of the mask if dmask is not null, and own, each query's sum of the
// products of its result and the result's gradient.
#define ATTENTION_GRAD_QUERY(T, t) \
	extern "C" __global__ void attention_grad_query_##t(T *dq, double *own, T *dmask, const T *dout, const T *out, const double *log_sums, \
		const T *q, const T *k, const T *v, const void *mask, attention a) { \
		__shared__ square<T> sa, sb, w; \
		i64 c0 = (i64)blockIdx.z * slices * tile; \
		for (i64 z = blockIdx.y; z < a.batch; z += gridDim.y) \
			for (i64 row = (i64)blockIdx.x * tile; row < a.l; row += (i64)gridDim.x * tile) { \
				const T *zq = q + offset(z, a.n, a.dims, a.q) + row * a.qrow; \
				const T *zk = k + offset(z, a.n, a.dims, a.k), *zv = v + offset(z, a.n, a.dims, a.v); \
				u64 zo = offset(z, a.n, a.dims, a.o) + row * a.orow; \
				i64 zm = offset(z, a.n, a.dims, a.m); \
				T acc[slices][4] = {}; \
				double mine[4], log_sum[4]; \
				for (int i = 0; i < 4; i++) { \
					i64 y = threadIdx.y + 8 * i; \
					total<T> products_of_row; \
					if (row + y < a.l) \
						for (i64 x = threadIdx.x; x < a.w; x += tile) \
							products_of_row.add((double)dout[zo + y * a.orow + x] * (double)out[zo + y * a.orow + x]); \
					mine[i] = warp_sum(products_of_row.value()); \
					log_sum[i] = row + y < a.l ? log_sums[z * a.l + row + y] : 0; \
					if (blockIdx.z == 0 && threadIdx.x == 0 && row + y < a.l) \
						own[z * a.l + row + y] = mine[i]; \
				} \
				for (i64 key = 0; key < a.s && !(a.causal && !dmask && key >= row + tile); key += tile) { \
					T s[4] = {0, 0, 0, 0}, g[4] = {0, 0, 0, 0}; \
					products(s, zq, a.qrow, a.l - row, zk + key * a.krow, a.krow, a.s - key, a.e, sa, sb); \
					products(g, dout + zo, a.orow, a.l - row, zv + key * a.vrow, a.vrow, a.s - key, a.w, sa, sb); \
					__syncthreads(); \
					for (int i = 0; i < 4; i++) { \
						i64 y = threadIdx.y + 8 * i, x = threadIdx.x; \
						double d = score(a, s[i], mask, zm, row + y, key + x), slope = 0; \
						if (d != -INFINITY) \
							slope = exp(d - log_sum[i]) * ((double)g[i] - mine[i]); \
						if (dmask && blockIdx.z == 0 && row + y < a.l && key + x < a.s) \
							dmask[(z * a.l + row + y) * a.s + key + x] = (T)slope; \
						w.at[y][x] = (T)(slope * a.scale); \
					} \
					for (int c = 0; c < slices; c++) \
						if (c0 + c * tile < a.e) \
							combine(acc[c], w, zk + key * a.krow, a.krow, a.s - key, c0 + c * tile, a.e, sb); \
				} \
				T *to = dq + offset(z, a.n, a.dims, a.dq); \
				for (int i = 0; i < 4; i++) \
					for (int c = 0; c < slices; c++) { \
						i64 y = row + threadIdx.y + 8 * i, x = c0 + c * tile + threadIdx.x; \
						if (y < a.l && x < a.e) \
							to[y * a.dqrow + x] = acc[c][i]; \
					} \
			} \
	}
FLOATS(ATTENTION_GRAD_QUERY)

#define ATTENTION_GRAD_KEY(T, t) \
	extern "C" __global__ void attention_grad_key_##t(T *dk, T *dv, const double *own, const T *dout, const double *log_sums, \
		const T *q, const T *k, const T *v, const void *mask, attention a) { \
		__shared__ square<T> sa, sb, w, slopes; \
		i64 c0 = (i64)blockIdx.z * slices * tile; \
		for (i64 z = blockIdx.y; z < a.batch; z += gridDim.y) \
			for (i64 key = (i64)blockIdx.x * tile; key < a.s; key += (i64)gridDim.x * tile) { \
				const T *zk = k + offset(z, a.n, a.dims, a.k) + key * a.krow, *zv = v + offset(z, a.n, a.dims, a.v) + key * a.vrow; \
				const T *zq = q + offset(z, a.n, a.dims, a.q), *zd = dout + offset(z, a.n, a.dims, a.o); \
				i64 zm = offset(z, a.n, a.dims, a.m); \
				T keys[slices][4] = {}, values[slices][4] = {}; \
				for (i64 row = a.causal ? key : 0; row < a.l; row += tile) { \
					T s[4] = {0, 0, 0, 0}, g[4] = {0, 0, 0, 0}; \
					products(s, zk, a.krow, a.s - key, zq + row * a.qrow, a.qrow, a.l - row, a.e, sa, sb); \
					products(g, zv, a.vrow, a.s - key, zd + row * a.orow, a.orow, a.l - row, a.w, sa, sb); \
					i64 query = row + threadIdx.x; \
					double log_sum = query < a.l ? log_sums[z * a.l + query] : 0, theirs = query < a.l ? own[z * a.l + query] : 0; \
					__syncthreads(); \
					for (int i = 0; i < 4; i++) { \
						int y = threadIdx.y + 8 * i; \
						double d = score(a, s[i], mask, zm, query, key + y), p = 0, slope = 0; \
						if (d != -INFINITY) { \
							p = exp(d - log_sum); \
							slope = p * ((double)g[i] - theirs); \
						} \
						w.at[y][threadIdx.x] = (T)p; \
						slopes.at[y][threadIdx.x] = (T)(slope * a.scale); \
					} \
					for (int c = 0; c < slices; c++) { \
						if (c0 + c * tile < a.w) \
							combine(values[c], w, zd + row * a.orow, a.orow, a.l - row, c0 + c * tile, a.w, sb); \
						if (c0 + c * tile < a.e) \
							combine(keys[c], slopes, zq + row * a.qrow, a.qrow, a.l - row, c0 + c * tile, a.e, sb); \
					} \
				} \
				T *tk = dk + offset(z, a.n, a.dims, a.dk), *tv = dv + offset(z, a.n, a.dims, a.dv); \
				for (int i = 0; i < 4; i++) \
					for (int c = 0; c < slices; c++) { \
						i64 y = key + threadIdx.y + 8 * i, x = c0 + c * tile + threadIdx.x; \
						if (y < a.s && x < a.e) \
							tk[y * a.dkrow + x] = keys[c][i]; \
						if (y < a.s && x < a.w) \
							tv[y * a.dvrow + x] = values[c][i]; \
					} \
			} \
	}
FLOATS(ATTENTION_GRAD_KEY)
