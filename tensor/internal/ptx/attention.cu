// Attention without the matrix of scores. A block of 32 by 8 threads has a tile of 32 queries (for
// the gradient of keys and values, of 32 keys), and meets tiles of the others one after the other.
// The scores of a tile are in shared memory, and the softmax state of the tiles before is in
// registers; see kernel.Attend. A warp has four whole rows of a tile. Each block computes 64
// columns of its result and recomputes the scores, so that any number of columns is possible. No
// block adds to the results of another, so that the results are the same in every run.

#include "attention.h"

enum { tile = 32, slices = 2 };

template <class T> struct square { T at[tile][tile + 1]; };

// products adds to sum[i] the product of row threadIdx.y + 8i of a and row threadIdx.x of b; they
// have an and bn rows.
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

// combine adds to acc[i] the sum over the bn rows of b of w times column c0 + threadIdx.x, of bc
// columns.
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

// score is the score of query i and key j with product s. It is -INFINITY if the query does not see
// the key.
template <class T> static __device__ double score(const attention &a, T s, const void *mask, i64 at, i64 i, i64 j) {
	if (i >= a.l || j >= a.s || (a.causal && j > i))
		return -INFINITY;
	// Unfused, so that the greatest score minus itself is 0.
	double v = __dmul_rn(s, a.scale);
	if (a.masking == no_mask)
		return v;
	at += i * a.mrow + j * a.mcol;
	if (a.masking == float_mask)
		return v + (double)((const T *)mask)[at];
	return ((const unsigned char *)mask)[at] ? v : -INFINITY;
}

#define ATTENTION(T, t) \
	extern "C" __global__ void attention_##t(T *out, summed *sums, const T *q, const T *k, const T *v, const void *mask, attention a) { \
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
						sums[z * a.l + y] = {seen(top[i]), 1 / sum[i]}; \
				} \
			} \
	}
FLOATS(ATTENTION)

// attention_grad_query sets the gradients of queries, and of the mask unless dmask is null. It sets
// own to each query's sum of the products of its result and the result's gradient.
#define ATTENTION_GRAD_QUERY(T, t) \
	extern "C" __global__ void attention_grad_query_##t(T *dq, double *own, T *dmask, const T *dout, const T *out, const summed *sums, \
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
				double mine[4]; \
				summed of_row[4]; \
				for (int i = 0; i < 4; i++) { \
					i64 y = threadIdx.y + 8 * i; \
					total<T> products_of_row; \
					if (row + y < a.l) \
						for (i64 x = threadIdx.x; x < a.w; x += tile) \
							products_of_row.add((double)dout[zo + y * a.orow + x] * (double)out[zo + y * a.orow + x]); \
					mine[i] = warp_sum(products_of_row.value()); \
					of_row[i] = row + y < a.l ? sums[z * a.l + row + y] : summed{0, 0}; \
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
							slope = of_row[i].weight(d) * ((double)g[i] - mine[i]); \
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
	extern "C" __global__ void attention_grad_key_##t(T *dk, T *dv, const double *own, const T *dout, const summed *sums, \
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
					summed of_row = query < a.l ? sums[z * a.l + query] : summed{0, 0}; \
					double theirs = query < a.l ? own[z * a.l + query] : 0; \
					__syncthreads(); \
					for (int i = 0; i < 4; i++) { \
						int y = threadIdx.y + 8 * i; \
						double d = score(a, s[i], mask, zm, query, key + y), p = 0, slope = 0; \
						if (d != -INFINITY) { \
							p = of_row.weight(d); \
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

// The attention of short sequences, of up to 64 rows and columns, in one launch, and its gradients.
// A block has 8 rows, one per warp, and all the rows that they meet are in shared memory. The sums
// of a row are within one warp, so blocks share nothing.
enum { most = 64, together = 8 };

// gather reads rows into shared memory. A warp reads two rows of 16, one of 32, or half of a longer
// one.
static __device__ void gather(float (*s)[most + 1], const float *from, i64 stride, i64 rows, i64 cols) {
	int shift = cols <= 16 ? 4 : cols <= 32 ? 5 : 6, x = threadIdx.x & ((1 << shift) - 1);
#pragma unroll 4
	for (int y = threadIdx.x >> shift; y < rows; y += 256 >> shift)
		if (x < cols)
			s[y][x] = from[y * stride + x];
}

// mine reads one row for a warp.
static __device__ void mine(float *s, const float *from, i64 cols) {
	int lane = threadIdx.x % 32;
	for (int x = lane; x < cols; x += 32)
		s[x] = from[x];
}

static __device__ float dot(const float *a, const float *b, int n) {
	float sum[4] = {0, 0, 0, 0};
	int x = 0;
	for (; x + 4 <= n; x += 4)
#pragma unroll
		for (int i = 0; i < 4; i++)
			sum[i] += a[x + i] * b[x + i];
	for (; x < n; x++)
		sum[0] += a[x] * b[x];
	return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// weigh is the sum, over the rows of s from y to n, of w times column x.
static __device__ float weigh(const float *w, const float (*s)[most + 1], int y, int n, int x) {
	float sum[4] = {0, 0, 0, 0};
	for (; y + 4 <= n; y += 4)
#pragma unroll
		for (int i = 0; i < 4; i++)
			sum[i] += w[y + i] * s[y + i][x];
	for (; y < n; y++)
		sum[0] += w[y] * s[y][x];
	return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

extern "C" __global__ void __launch_bounds__(256) attention_short_f32(float *out, summed *sums, const float *q, const float *k, const float *v, const void *mask, attention a) {
	__shared__ float keys[most][most + 1], values[most][most + 1], query[together][most], weights[together][most];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	i64 row = (i64)blockIdx.x * together + warp;
	for (i64 z = blockIdx.y; z < a.batch; z += gridDim.y) {
		gather(keys, k + offset(z, a.n, a.dims, a.k), a.krow, a.s, a.e);
		gather(values, v + offset(z, a.n, a.dims, a.v), a.vrow, a.s, a.w);
		if (row < a.l)
			mine(query[warp], q + offset(z, a.n, a.dims, a.q) + row * a.qrow, a.e);
		__syncthreads();
		if (row < a.l) {
			i64 zm = a.masking == no_mask ? 0 : offset(z, a.n, a.dims, a.m);
			double d[2], p[2];
			for (int i = 0; i < 2; i++) {
				int key = lane + 32 * i;
				d[i] = key < a.s ? score(a, dot(query[warp], keys[key], a.e), mask, zm, row, key) : -INFINITY;
			}
			double top = warp_max(fmax(d[0], d[1])), base = seen(top);
			for (int i = 0; i < 2; i++) {
				p[i] = d[i] == -INFINITY ? 0 : exp(d[i] - base);
				weights[warp][lane + 32 * i] = (float)p[i];
			}
			double sum = warp_sum(p[0] + p[1]);
			__syncwarp();
			float *to = out + offset(z, a.n, a.dims, a.o) + row * a.orow;
			for (int x = lane; x < a.w; x += 32)
				to[x] = sum == 0 ? 0 : (float)((double)weigh(weights[warp], values, 0, a.causal ? min(a.s, row + 1) : a.s, x) / sum);
			if (lane == 0)
				sums[z * a.l + row] = {base, 1 / sum};
		}
		__syncthreads();
	}
}

// attention_short_grad: the first blocks have queries, and meet keys and values. The others have
// keys and values, and meet queries and the gradients of the results. own is each query's sum of
// the products of its result and the result's gradient.
extern "C" __global__ void __launch_bounds__(256) attention_short_grad_f32(float *dq, float *dk, float *dv, const float *dout, const float *out, const summed *sums,
	const float *q, const float *k, const float *v, const void *mask, attention a) {
	__shared__ float first[most][most + 1], second[most][most + 1], left[together][most], right[together][most];
	__shared__ double own[most];
	__shared__ summed of_row[most];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, queries = (int)((a.l + together - 1) / together);
	bool of_query = blockIdx.x < queries;
	i64 row = (i64)(of_query ? blockIdx.x : blockIdx.x - queries) * together + warp, rows = of_query ? a.l : a.s, others = of_query ? a.s : a.l;
	for (i64 z = blockIdx.y; z < a.batch; z += gridDim.y) {
		const float *zq = q + offset(z, a.n, a.dims, a.q), *zk = k + offset(z, a.n, a.dims, a.k), *zv = v + offset(z, a.n, a.dims, a.v);
		i64 zo = offset(z, a.n, a.dims, a.o), zm = a.masking == no_mask ? 0 : offset(z, a.n, a.dims, a.m);
		gather(first, of_query ? zk : zq, of_query ? a.krow : a.qrow, others, a.e);
		gather(second, of_query ? zv : dout + zo, of_query ? a.vrow : a.orow, others, a.w);
		if (row < rows) {
			mine(left[warp], of_query ? zq + row * a.qrow : zk + row * a.krow, a.e);
			mine(right[warp], of_query ? dout + zo + row * a.orow : zv + row * a.vrow, a.w);
		}
		// A block of queries needs own for its rows, a block of keys for all queries.
		for (i64 y = of_query ? row : warp; y < a.l; y += together) {
			double sum = 0;
			for (int x = lane; x < a.w; x += 32)
				sum += (double)dout[zo + y * a.orow + x] * (double)out[zo + y * a.orow + x];
			sum = warp_sum(sum);
			if (lane == 0) {
				own[y] = sum;
				of_row[y] = sums[z * a.l + y];
			}
			if (of_query)
				break;
		}
		__syncthreads();
		float p[2], slope[2];
		for (int i = 0; i < 2; i++) {
			int other = lane + 32 * i;
			p[i] = slope[i] = 0;
			if (row >= rows || other >= others)
				continue;
			i64 query = of_query ? row : other, key = of_query ? other : row;
			double d = score(a, dot(left[warp], first[other], a.e), mask, zm, query, key);
			if (d == -INFINITY)
				continue;
			double e = of_row[query].weight(d);
			p[i] = (float)e;
			slope[i] = (float)(e * ((double)dot(right[warp], second[other], a.w) - own[query]) * a.scale);
		}
		__syncwarp();
		for (int i = 0; i < 2; i++) {
			left[warp][lane + 32 * i] = slope[i];
			right[warp][lane + 32 * i] = p[i];
		}
		__syncwarp();
		if (row < rows) {
			// The rows that this row sees, or that see it.
			int from = a.causal && !of_query ? row : 0, end = a.causal && of_query ? min(others, row + 1) : others;
			float *to = of_query ? dq + offset(z, a.n, a.dims, a.dq) + row * a.dqrow : dk + offset(z, a.n, a.dims, a.dk) + row * a.dkrow;
			for (int x = lane; x < a.e; x += 32)
				to[x] = weigh(left[warp], first, from, end, x);
			if (!of_query)
				for (int x = lane; x < a.w; x += 32)
					dv[offset(z, a.n, a.dims, a.dv) + row * a.dvrow + x] = weigh(right[warp], second, from, end, x);
		}
		__syncthreads();
	}
}
