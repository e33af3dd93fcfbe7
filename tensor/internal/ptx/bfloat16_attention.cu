// target compute_80
// Attention of bfloat16 by the matrix units; attention.cu is without them. A warp has 16 queries
// (for the gradient of keys and values, 16 keys), and meets tiles of the others one after the
// other. The next tile is copied while the current one is used. Products are added in float.
// Weights and the slopes of scores are rounded to bfloat16 to be factors.

#include "attention.h"
#include "mma.h"

static const double log2e = 1.44269504088896340736;

// sheet is a warp's 16 rows by 8 n columns of sums. Of each eight columns, lane 4 g + t has
// elements 2 t and 2 t + 1 of row g, and of row g + 8.
template <int n> struct sheet {
	float at[n][4];
	__device__ void clear() {
#pragma unroll
		for (int j = 0; j < n; j++)
			for (int i = 0; i < 4; i++)
				at[j][i] = 0;
	}
	// factor returns columns 16 k to 16 k + 15, rounded, as mma's first factor.
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

// held is a warp's 16 rows of a tile, as mma's first factors.
template <int d> struct held {
	unsigned at[d / 16][4];
	template <int n> __device__ void take(const rows<n, d> &from, int row) {
#pragma unroll
		for (int k = 0; k < d / 16; k++)
			from.left(at[k], row, 16 * k);
	}
};

// meet adds to sum the products of the rows of a and c rows of b, starting at row.
template <int c, int n, int d> static __device__ void meet(sheet<c> &sum, const held<d> &a, const rows<n, d> &b, int row) {
#pragma unroll
	for (int k = 0; k < d / 16; k++)
#pragma unroll
		for (int j = 0; j < c / 2; j++) {
			unsigned right[4];
			b.right(right, row + 16 * j, 16 * k);
			mma(sum.at[2 * j], a.at[k], right[0], right[1]);
			mma(sum.at[2 * j + 1], a.at[k], right[2], right[3]);
		}
}

// combine adds to sum the rows of b, starting at row, each times its weight in w.
template <int c, int n, int d> static __device__ void combine(sheet<d / 8> &sum, const sheet<c> &w, const rows<n, d> &b, int row) {
#pragma unroll
	for (int k = 0; k < c / 2; k++) {
		unsigned left[4], right[4];
		w.factor(left, k);
#pragma unroll
		for (int j = 0; j < d / 16; j++) {
			b.upright(right, row + 16 * k, 16 * j);
			mma(sum.at[2 * j], left, right[0], right[1]);
			mma(sum.at[2 * j + 1], left, right[2], right[3]);
		}
	}
}

// of_row reduces the values of the four lanes of a row.
static __device__ float row_max(float v) {
	v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
	return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
static __device__ float row_sum(float v) {
	v += __shfl_xor_sync(~0u, v, 1);
	return v + __shfl_xor_sync(~0u, v, 2);
}

// TILES iterates over the batch and its tiles of n rows.
#define TILES(z, row, count, n) \
	for (i64 z = blockIdx.y; z < a.batch; z += gridDim.y) \
		for (i64 row = (i64)blockIdx.x * n; row < count; row += (i64)gridDim.x * n)

// starts holds the offsets of the arrays of element z of the batch, one per lane, so that the code
// of offset exists only once.
enum { of_q, of_k, of_v, of_o, of_m, of_dq, of_dk, of_dv };
struct starts {
	u64 one;
	__device__ starts(const attention &a, u64 z) : one(offset(z, a.n, a.dims, (const i64 *)&a + 1 + max_dims * (1 + threadIdx.x % 8))) {}
	__device__ u64 operator[](int which) const { return __shfl_sync(~0u, one, which); }
};

// side holds the operands for queries or for keys: queries and the gradients of their results, or
// keys and values.
struct side {
	const bfloat16 *one, *two;
	i64 one_row, two_row, count;

	template <int n, int d> __device__ void fill(rows<n, d> (&to)[2], i64 row, const attention &a) const {
		to[0].fill(one + row * one_row, one_row, count - row, a.e);
		to[1].fill(two + row * two_row, two_row, count - row, a.w);
	}
};

template <int n, int d> static __device__ void attend(bfloat16 *out, summed *sums, const bfloat16 *q, const bfloat16 *k, const bfloat16 *v, const attention &a) {
	__shared__ rows<n, d> tile[2][2]; // of keys and values
	int warp = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	float by = (float)(a.scale * log2e);
	TILES(z, row, a.l, n) {
		starts at(a, z);
		side keys = {k + at[of_k], v + at[of_v], a.krow, a.vrow, a.s};
		i64 end = a.causal ? min(a.s, row + n) : a.s;
		copies_but<0>();
		__syncthreads();
		tile[1][0].fill(q + at[of_q] + row * a.qrow, a.qrow, a.l - row, a.e);
		copies_end();
		keys.fill(tile[0], 0, a);
		copies_end();
		copies_but<1>();
		__syncthreads();
		held<d> queries;
		queries.take(tile[1][0], warp);
		sheet<d / 8> sum;
		sum.clear();
		float top[2] = {-INFINITY, -INFINITY}, all[2] = {0, 0};
		int stage = 0;
		for (i64 key = 0; key < end; key += n, stage ^= 1) {
			copies_but<0>();
			__syncthreads();
			if (key + n < end)
				keys.fill(tile[stage ^ 1], key + n, a);
			copies_end();
			sheet<n / 8> p;
			p.clear();
			meet(p, queries, tile[stage][0], 0);
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
						// Unfused, so that the greatest score minus itself is 0.
						float score = __fmul_rn(p.at[j][i], by);
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
			combine(sum, p, tile[stage][1], 0);
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
		sum.write(out + at[of_o] + row * a.orow, a.orow, warp, a.l - row, a.w);
	}
}

// attention_own sets each query's sum of the products of its result and the result's gradient.
// Eight threads share a query.
extern "C" __global__ void __launch_bounds__(256) attention_own_bf16(float *own, const bfloat16 *dout, const bfloat16 *out, attention a) {
	u64 queries = a.batch * a.l;
	for (u64 first = blockIdx.x * 32; first < queries; first += gridDim.x * 32) {
		u64 i = min(first + threadIdx.x / 8, queries - 1), z = divide(i, a.l), at = offset(z, a.n, a.dims, a.o) + (i - z * a.l) * a.orow;
		float sum = 0;
		walk(dout + at, a.w, 1, threadIdx.x % 8, 8, [&](u64 x, float v) { sum += v * (float)out[at + x]; }, [] {});
		for (int lane = 1; lane < 8; lane *= 2)
			sum += __shfl_xor_sync(~0u, sum, lane);
		if (threadIdx.x % 8 == 0)
			own[i] = sum;
	}
}

// A block has n queries, or keys, and meets tiles of n of the others. A warp has 16 of its rows,
// and keeps their factors and sums.
template <int n, int d> struct sloping {
	enum { part = 32 }; // columns of a tile that a warp computes at a time
	rows<n, d> tile[2][2];
	summed coming[n]; // of the next tile's queries
	__align__(8) float top[2][n], share[2][n], own[2][n];

	template <bool keys> __device__ void fill(int stage, const side &others, const float *owns, const summed *sums, i64 at, const attention &a) {
		others.fill(tile[stage], at, a);
		if (keys && threadIdx.x < n) {
			i64 query = at + threadIdx.x;
			copy_double(&coming[threadIdx.x].top, &sums[query].top, query < a.l);
			copy_double(&coming[threadIdx.x].share, &sums[query].share, query < a.l);
			copy_one(&own[stage][threadIdx.x], owns + query, query < a.l);
		}
		copies_end();
	}

	// filled waits until the tile is complete, for all threads. Each thread rounds the sums that it
	// copied.
	template <bool keys> __device__ void filled(int stage) {
		copies_but<0>();
		if (keys && threadIdx.x < n) {
			top[stage][threadIdx.x] = (float)(coming[threadIdx.x].top * log2e);
			share[stage][threadIdx.x] = (float)coming[threadIdx.x].share;
		}
		__syncthreads();
	}

	// slope computes the gradients of ones and, for keys, those of twos.
	template <bool keys> __device__ void slope(sheet<d / 8> &ones, sheet<d / 8> &twos, const side &mine, const side &others, const float *of, const summed *sums, i64 row,
		const attention &a) {
		int warp = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
		float by = (float)(a.scale * log2e), scale = (float)a.scale;
		i64 at = keys && a.causal ? row : 0, end = !keys && a.causal ? min(others.count, row + n) : others.count;
		mine.fill(tile[1], row, a);
		copies_end();
		fill<keys>(0, others, of, sums, at, a);
		float tops[2], owns[2], factors[2] = {scale, scale};
#pragma unroll
		for (int half = 0; !keys && half < 2; half++) {
			i64 query = row + warp + g + 8 * half;
			summed s = query < a.l ? sums[query] : summed{0, 0};
			tops[half] = (float)(s.top * log2e);
			factors[half] = (float)s.share * scale;
			owns[half] = query < a.l ? of[query] : 0;
		}
		copies_but<1>();
		__syncthreads();
		held<d> one, two;
		one.take(tile[1][0], warp);
		two.take(tile[1][1], warp);
		ones.clear();
		twos.clear();
		for (int stage = 0; at < end; at += n, stage ^= 1) {
			filled<keys>(stage);
			if (at + n < end)
				fill<keys>(stage ^ 1, others, of, sums, at + n, a);
			bool diagonal = a.causal && at == row;
			int there = (int)min(others.count - at, (i64)n);
#pragma unroll 1
			for (int from = 0; from < n; from += part) {
				sheet<part / 8> weight, slope;
				weight.clear();
				slope.clear();
				meet(weight, one, tile[stage][0], from);
				meet(slope, two, tile[stage][1], from);
#pragma unroll
				for (int j = 0; j < part / 8; j++)
#pragma unroll
					for (int i = 0; i < 4; i++) {
						int x = from + 8 * j + 2 * t + i % 2;
						float &w = weight.at[j][i], &s = slope.at[j][i];
						// Unfused, as in attend.
						w = power_of_two(__fmul_rn(w, by) - (keys ? top[stage][x] : tops[i / 2]));
						if (keys)
							w *= share[stage][x];
						s = w * (s - (keys ? own[stage][x] : owns[i / 2]));
					}
				if (diagonal || there < n) {
#pragma unroll
					for (int j = 0; j < part / 8; j++)
#pragma unroll
						for (int i = 0; i < 4; i++) {
							int x = from + 8 * j + 2 * t + i % 2, y = warp + g + i / 2 * 8;
							if (x >= there || (diagonal && (keys ? x < y : x > y)))
								weight.at[j][i] = slope.at[j][i] = 0;
						}
				}
				if (keys)
					combine(twos, weight, tile[stage][1], from);
				combine(ones, slope, tile[stage][0], from);
			}
		}
#pragma unroll
		for (int j = 0; j < d / 8; j++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				ones.at[j][i] *= factors[i / 2];
	}
};

// attend_grad sets all gradients. Blocks with the most tiles of a causal attention come first, so
// that short ones fill the gaps.
template <int n, int d>
static __device__ void attend_grad(bfloat16 *dq, bfloat16 *dk, bfloat16 *dv, const float *own, const bfloat16 *dout, const summed *sums, const bfloat16 *q, const bfloat16 *k,
	const bfloat16 *v, const attention &a) {
	__shared__ sloping<n, d> shared;
	int warp = threadIdx.x / 32 * 16;
	u64 of_queries = (a.l + n - 1) / n, of_keys = (a.s + n - 1) / n;
	for (u64 i = blockIdx.x; i < (of_keys + of_queries) * a.batch; i += gridDim.x) {
		u64 tile = divide(i, a.batch), z = i - tile * a.batch;
		starts at(a, z);
		side queries = {q + at[of_q], dout + at[of_o], a.qrow, a.orow, a.l}, keys = {k + at[of_k], v + at[of_v], a.krow, a.vrow, a.s};
		sheet<d / 8> ones, twos;
		copies_but<0>();
		__syncthreads();
		if (tile < of_keys) {
			i64 row = tile * n;
			shared.template slope<true>(ones, twos, keys, queries, own + z * a.l, sums + z * a.l, row, a);
			ones.write(dk + at[of_dk] + row * a.dkrow, a.dkrow, warp, a.s - row, a.e);
			twos.write(dv + at[of_dv] + row * a.dvrow, a.dvrow, warp, a.s - row, a.w);
		} else {
			i64 row = (of_keys + of_queries - 1 - tile) * n;
			shared.template slope<false>(ones, twos, queries, keys, own + z * a.l, sums + z * a.l, row, a);
			ones.write(dq + at[of_dq] + row * a.dqrow, a.dqrow, warp, a.l - row, a.e);
		}
	}
}

// An edition is for queries, keys and values of up to d columns, with tiles of n rows, for 2 n
// threads. blocks is the number of the gradients' blocks on a multiprocessor at once. mask is null.
#define EDITION(d, n, blocks) \
	extern "C" __global__ void __launch_bounds__(2 * n) attention_##d##_bf16(bfloat16 *out, summed *sums, const bfloat16 *q, const bfloat16 *k, const bfloat16 *v, \
		const void *mask, attention a) { \
		attend<n, d>(out, sums, q, k, v, a); \
	} \
	extern "C" __global__ void __launch_bounds__(2 * n, blocks) attention_grad_##d##_bf16(bfloat16 *dq, bfloat16 *dk, bfloat16 *dv, const float *own, const bfloat16 *dout, \
		const summed *sums, const bfloat16 *q, const bfloat16 *k, const bfloat16 *v, const void *mask, attention a) { \
		attend_grad<n, d>(dq, dk, dv, own, dout, sums, q, k, v, a); \
	}
EDITION(64, 64, 3)
EDITION(128, 32, 4)
