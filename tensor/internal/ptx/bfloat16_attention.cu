// target compute_80
// Attention of bfloat16 by the matrix units, as attention.cu without them: a warp has 16 queries (for the gradient of keys and values, 16 keys), and
// meets tiles of the others one after the other. Products are added up in float; weights, and the slopes of scores, are rounded to bfloat16 to be factors.

#include "attention.h"
#include "mma.h"

static const double log2e = 1.44269504088896340736;

// sheet is a warp's 16 rows by 8 n columns of sums: lane 4 g + t has of eight columns elements 2 t and 2 t + 1 of row g, and of row g + 8.
template <int n> struct sheet {
	float at[n][4];
	__device__ void clear() {
#pragma unroll
		for (int j = 0; j < n; j++)
			for (int i = 0; i < 4; i++)
				at[j][i] = 0;
	}
	// factor is columns 16 k to 16 k + 15, rounded, as mma's first factor.
	__device__ void factor(unsigned (&to)[4], int k) const {
		to[0] = pair(at[2 * k][0], at[2 * k][1]);
		to[1] = pair(at[2 * k][2], at[2 * k][3]);
		to[2] = pair(at[2 * k + 1][0], at[2 * k + 1][1]);
		to[3] = pair(at[2 * k + 1][2], at[2 * k + 1][3]);
	}
	// write rounds the first cols columns of the rows to memory.
	__device__ void write(bfloat16 *to, i64 apart, i64 row, i64 last, i64 cols) const {
		int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
		bool even = cols % 2 == 0 && apart % 2 == 0 && ((u64)to & 3) == 0;
#pragma unroll
		for (int half = 0; half < 2; half++) {
			i64 y = row + g + 8 * half;
			if (y >= last)
				continue;
#pragma unroll
			for (int j = 0; j < n; j++) {
				i64 x = 8 * j + 2 * t;
				float a = at[j][2 * half], b = at[j][2 * half + 1];
				if (even && x < cols) {
					*(unsigned *)(to + y * apart + x) = pair(a, b);
				} else {
					if (x < cols)
						to[y * apart + x] = (bfloat16)a;
					if (x + 1 < cols)
						to[y * apart + x + 1] = (bfloat16)b;
				}
			}
		}
	}
};

// meet adds to sum the products of 16 rows of a and the n rows of b.
template <int n, int m, int d> static __device__ void meet(sheet<n / 8> &sum, const rows<m, d> &a, int row, const rows<n, d> &b) {
#pragma unroll
	for (int k = 0; k < d; k += 16) {
		unsigned left[4], right[4];
		a.left(left, row, k);
#pragma unroll
		for (int j = 0; j < n / 16; j++) {
			b.right(right, 16 * j, k);
			mma(sum.at[2 * j], left, right[0], right[1]);
			mma(sum.at[2 * j + 1], left, right[2], right[3]);
		}
	}
}

// combine adds to sum the rows of b, each times its weight in w.
template <int n, int d> static __device__ void combine(sheet<d / 8> &sum, const sheet<n / 8> &w, const rows<n, d> &b) {
#pragma unroll
	for (int k = 0; k < n / 16; k++) {
		unsigned left[4], right[4];
		w.factor(left, k);
#pragma unroll
		for (int j = 0; j < d / 16; j++) {
			b.upright(right, 16 * k, 16 * j);
			mma(sum.at[2 * j], left, right[0], right[1]);
			mma(sum.at[2 * j + 1], left, right[2], right[3]);
		}
	}
}

// of_row joins what the four lanes of a row have.
static __device__ float row_max(float v) {
	v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
	return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
static __device__ float row_sum(float v) {
	v += __shfl_xor_sync(~0u, v, 1);
	return v + __shfl_xor_sync(~0u, v, 2);
}

// TILES walks over the batch and its tiles of n rows.
#define TILES(z, row, count, n) \
	for (i64 z = blockIdx.y; z < a.batch; z += gridDim.y) \
		for (i64 row = (i64)blockIdx.x * n; row < count; row += (i64)gridDim.x * n)

#define AT(of) offset(z, a.n, a.dims, a.of)

template <int n, int d> static __device__ void attend(bfloat16 *out, summed *sums, const bfloat16 *q, const bfloat16 *k, const bfloat16 *v, const attention &a) {
	__shared__ rows<n, d> sq, sk, sv;
	int warp = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	float by = (float)(a.scale * log2e);
	TILES(z, row, a.l, n) {
		const bfloat16 *zk = k + AT(k), *zv = v + AT(v);
		__syncthreads();
		sq.fill(q + AT(q) + row * a.qrow, a.qrow, a.l - row, a.e);
		sheet<d / 8> sum;
		sum.clear();
		float top[2] = {-INFINITY, -INFINITY}, all[2] = {0, 0};
		for (i64 key = 0; key < a.s && !(a.causal && key >= row + n); key += n) {
			__syncthreads();
			sk.fill(zk + key * a.krow, a.krow, a.s - key, a.e);
			sv.fill(zv + key * a.vrow, a.vrow, a.s - key, a.w);
			__syncthreads();
			sheet<n / 8> p;
			p.clear();
			meet(p, sq, warp, sk);
			bool edge = key + n > a.s || (a.causal && key + n > row);
#pragma unroll
			for (int half = 0; half < 2; half++) {
				i64 query = row + warp + g + 8 * half;
				float greatest = top[half];
#pragma unroll
				for (int j = 0; j < n / 8; j++)
#pragma unroll
					for (int i = 2 * half; i < 2 * half + 2; i++) {
						i64 at = key + 8 * j + 2 * t + i % 2;
						float score = __fmul_rn(p.at[j][i], by); // unfused, so that the greatest score less itself is 0
						if (edge && (at >= a.s || (a.causal && at > query)))
							score = -INFINITY;
						p.at[j][i] = score;
						greatest = fmaxf(greatest, score);
					}
				greatest = row_max(greatest);
				float base = greatest == -INFINITY ? 0 : greatest, shrink = exp2f(top[half] - base), part = 0;
				top[half] = greatest;
#pragma unroll
				for (int j = 0; j < n / 8; j++)
#pragma unroll
					for (int i = 2 * half; i < 2 * half + 2; i++)
						part += p.at[j][i] = exp2f(p.at[j][i] - base);
				all[half] = all[half] * shrink + part;
#pragma unroll
				for (int j = 0; j < d / 8; j++) {
					sum.at[j][2 * half] *= shrink;
					sum.at[j][2 * half + 1] *= shrink;
				}
			}
			combine(sum, p, sv);
		}
#pragma unroll
		for (int half = 0; half < 2; half++) {
			i64 query = row + warp + g + 8 * half;
			float weights = row_sum(all[half]), share = weights == 0 ? 0 : 1 / weights;
#pragma unroll
			for (int j = 0; j < d / 8; j++) {
				sum.at[j][2 * half] *= share;
				sum.at[j][2 * half + 1] *= share;
			}
			if (t == 0 && query < a.l)
				sums[z * a.l + query] = {seen(top[half]) / log2e, 1 / (double)weights};
		}
		sum.write(out + AT(o) + row * a.orow, a.orow, warp, a.l - row, a.w);
	}
}

// attend_grad_query sets the gradients of queries, and own, each query's sum of the products of its result and the result's gradient.
template <int n, int d>
static __device__ void attend_grad_query(bfloat16 *dq, double *own, const bfloat16 *dout, const bfloat16 *out, const summed *sums, const bfloat16 *q, const bfloat16 *k,
	const bfloat16 *v, const attention &a) {
	__shared__ rows<n, d> sq, sd, sk, sv;
	int warp = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	float by = (float)(a.scale * log2e), scale = (float)a.scale;
	TILES(z, row, a.l, n) {
		const bfloat16 *zk = k + AT(k), *zv = v + AT(v), *zo = out + AT(o) + row * a.orow;
		__syncthreads();
		sq.fill(q + AT(q) + row * a.qrow, a.qrow, a.l - row, a.e);
		sd.fill(dout + AT(o) + row * a.orow, a.orow, a.l - row, a.w);
		__syncthreads();
		float mine[2], top[2], share[2];
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int y = warp + g + 8 * half;
			bool there = row + y < a.l;
			float part = 0;
			for (i64 x = t; there && x < a.w; x += 4)
				part += (float)sd.at[y][x] * (float)zo[y * a.orow + x];
			mine[half] = row_sum(part);
			summed s = there ? sums[z * a.l + row + y] : summed{0, 0};
			top[half] = (float)(s.top * log2e);
			share[half] = (float)s.share;
			if (t == 0 && there)
				own[z * a.l + row + y] = mine[half];
		}
		sheet<d / 8> sum;
		sum.clear();
		for (i64 key = 0; key < a.s && !(a.causal && key >= row + n); key += n) {
			__syncthreads();
			sk.fill(zk + key * a.krow, a.krow, a.s - key, a.e);
			sv.fill(zv + key * a.vrow, a.vrow, a.s - key, a.w);
			__syncthreads();
			sheet<n / 8> p, slope;
			p.clear();
			slope.clear();
			meet(p, sq, warp, sk);
			meet(slope, sd, warp, sv);
			bool edge = key + n > a.s || (a.causal && key + n > row);
#pragma unroll
			for (int j = 0; j < n / 8; j++)
#pragma unroll
				for (int i = 0; i < 4; i++) {
					i64 at = key + 8 * j + 2 * t + i % 2, query = row + warp + g + i / 2 * 8;
					float weight = exp2f(__fmul_rn(p.at[j][i], by) - top[i / 2]) * share[i / 2];
					p.at[j][i] = edge && (at >= a.s || (a.causal && at > query)) ? 0 : weight * (slope.at[j][i] - mine[i / 2]) * scale;
				}
			combine(sum, p, sk);
		}
		sum.write(dq + AT(dq) + row * a.dqrow, a.dqrow, warp, a.l - row, a.e);
	}
}

template <int n, int d>
static __device__ void attend_grad_key(bfloat16 *dk, bfloat16 *dv, const double *own, const bfloat16 *dout, const summed *sums, const bfloat16 *q, const bfloat16 *k,
	const bfloat16 *v, const attention &a) {
	__shared__ rows<n, d> sq, sd, sk, sv;
	__shared__ float tops[n], shares[n], owns[n];
	int warp = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	float by = (float)(a.scale * log2e), scale = (float)a.scale;
	TILES(z, key, a.s, n) {
		const bfloat16 *zq = q + AT(q), *zd = dout + AT(o);
		__syncthreads();
		sk.fill(k + AT(k) + key * a.krow, a.krow, a.s - key, a.e);
		sv.fill(v + AT(v) + key * a.vrow, a.vrow, a.s - key, a.w);
		sheet<d / 8> keys, values;
		keys.clear();
		values.clear();
		for (i64 row = a.causal ? key : 0; row < a.l; row += n) {
			__syncthreads();
			sq.fill(zq + row * a.qrow, a.qrow, a.l - row, a.e);
			sd.fill(zd + row * a.orow, a.orow, a.l - row, a.w);
			for (int i = threadIdx.x; i < n; i += blockDim.x) {
				summed s = row + i < a.l ? sums[z * a.l + row + i] : summed{0, 0};
				tops[i] = (float)(s.top * log2e);
				shares[i] = (float)s.share;
				owns[i] = row + i < a.l ? (float)own[z * a.l + row + i] : 0;
			}
			__syncthreads();
			sheet<n / 8> p, slope;
			p.clear();
			meet(p, sk, warp, sq);
			bool edge = row + n > a.l || key + n > a.s || (a.causal && key + n > row);
#pragma unroll
			for (int j = 0; j < n / 8; j++)
#pragma unroll
				for (int i = 0; i < 4; i++) {
					i64 query = row + 8 * j + 2 * t + i % 2, at = key + warp + g + i / 2 * 8;
					bool hidden = edge && (query >= a.l || at >= a.s || (a.causal && at > query));
					p.at[j][i] = hidden ? 0 : exp2f(__fmul_rn(p.at[j][i], by) - tops[8 * j + 2 * t + i % 2]) * shares[8 * j + 2 * t + i % 2];
				}
			combine(values, p, sd);
			slope.clear();
			meet(slope, sv, warp, sd);
#pragma unroll
			for (int j = 0; j < n / 8; j++)
#pragma unroll
				for (int i = 0; i < 4; i++) {
					i64 query = row + 8 * j + 2 * t + i % 2, at = key + warp + g + i / 2 * 8;
					bool hidden = edge && (query >= a.l || at >= a.s || (a.causal && at > query));
					p.at[j][i] = hidden ? 0 : p.at[j][i] * (slope.at[j][i] - owns[8 * j + 2 * t + i % 2]) * scale;
				}
			combine(keys, p, sq);
		}
		keys.write(dk + AT(dk) + key * a.dkrow, a.dkrow, warp, a.s - key, a.e);
		values.write(dv + AT(dv) + key * a.dvrow, a.dvrow, warp, a.s - key, a.w);
	}
}

// An edition is for queries, keys and values of up to d columns, with tiles of n rows, for 2 n threads. mask is null.
#define EDITION(d, n) \
	extern "C" __global__ void __launch_bounds__(2 * n) attention_##d##_bf16(bfloat16 *out, summed *sums, const bfloat16 *q, const bfloat16 *k, const bfloat16 *v, \
		const void *mask, attention a) { \
		attend<n, d>(out, sums, q, k, v, a); \
	} \
	extern "C" __global__ void __launch_bounds__(2 * n) attention_grad_query_##d##_bf16(bfloat16 *dq, double *own, bfloat16 *dmask, const bfloat16 *dout, const bfloat16 *out, \
		const summed *sums, const bfloat16 *q, const bfloat16 *k, const bfloat16 *v, const void *mask, attention a) { \
		attend_grad_query<n, d>(dq, own, dout, out, sums, q, k, v, a); \
	} \
	extern "C" __global__ void __launch_bounds__(2 * n) attention_grad_key_##d##_bf16(bfloat16 *dk, bfloat16 *dv, const double *own, const bfloat16 *dout, \
		const summed *sums, const bfloat16 *q, const bfloat16 *k, const bfloat16 *v, const void *mask, attention a) { \
		attend_grad_key<n, d>(dk, dv, own, dout, sums, q, k, v, a); \
	}
EDITION(64, 64)
EDITION(128, 32)
