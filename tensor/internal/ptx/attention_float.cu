// target compute_80
// Attention of float as in attention.cu, with larger tiles. A thread has up to 8 by 8 results of
// each product in registers, and the next tiles are copied to shared memory while the current ones
// are used. Scores, their exponentials and the sums of these are float.

#include "attention.h"
#include "sheet.h"
#include "vector.h"

static const float log2e = 1.44269504088896340736f;

#define AT(of) offset(z, a.n, a.dims, a.of)

// window describes a tile of queries and keys: the number of rows and keys from its corner on, and
// the mask from there on.
struct window {
	int rows, keys, ahead; // key j is hidden from query i if j > i + ahead
	const void *mask;

	__device__ window(const attention &a, const void *m, i64 at, i64 row, i64 key) {
		at += row * a.mrow + key * a.mcol;
		rows = (int)min(a.l - row, (i64)256);
		keys = (int)min(a.s - key, (i64)256);
		ahead = a.causal ? (int)max(min(row - key, (i64)256), (i64)-256) : 256;
		mask = a.masking == no_mask ? 0 : a.masking == float_mask ? (const void *)((const float *)m + at) : (const void *)((const unsigned char *)m + at);
	}

	// hide applies the mask to a thread's scores, and sets those of keys that their query does not
	// see to -INFINITY.
	template <int across, int r, int c> __device__ void hide(float (&s)[r][c], const attention &a, const corner<across> &me) const {
		auto each = [&](auto masked) {
#pragma unroll
			for (int i = 0; i < r; i++) {
				int y = spread<r, 8>::at(me.y, i), end = y < rows ? min(keys, y + ahead + 1) : 0;
#pragma unroll
				for (int j = 0; j < c; j++) {
					int x = spread<c, across>::at(me.x, j);
					s[i][j] = x < end ? masked(s[i][j], y, x) : -INFINITY;
				}
			}
		};
		if (a.masking == no_mask)
			each([](float s, int, int) { return s; });
		else if (a.masking == float_mask)
			each([&](float s, int y, int x) { return s + ((const float *)mask)[y * a.mrow + x * a.mcol]; });
		else
			each([&](float s, int y, int x) { return ((const unsigned char *)mask)[y * a.mrow + x * a.mcol] ? s : -INFINITY; });
	}
};

// A block has 64 queries, and meets tiles of n keys.
template <int n, int d, int across> struct attending {
	enum { rows = 64, keys = n / across, columns = d / across, most = keys < 4 ? keys : 4 };
	sheet<rows, d> q;
	sheet<n, d, most> k;
	sheet<n, d> v;
	// p has columns for as many keys as the threads store at a time.
	sheet<rows, most * across> p;

	__device__ void attend(float *out, summed *sums, const float *qs, const float *ks, const float *vs, const void *mask, const attention &a, u64 tile, u64 z) {
		corner<across> me;
		float scale = (float)a.scale;
		i64 row = tile * rows, end = a.causal ? min(a.s, row + rows) : a.s, zm = a.masking == no_mask ? 0 : AT(m);
		ks += AT(k);
		vs += AT(v);
		q.template fill<8 * across>(qs + AT(q) + row * a.qrow, a.qrow, a.l - row, a.e);
		k.template fill<8 * across>(ks, a.krow, a.s, a.e);
		copies_end();
		v.template fill<8 * across>(vs, a.vrow, a.s, a.w);
		copies_end();
		__align__(16) float sum[8][columns];
		float top[8], all[8];
#pragma unroll
		for (int i = 0; i < 8; i++) {
			top[i] = -INFINITY;
			all[i] = 0;
#pragma unroll
			for (int j = 0; j < columns; j++)
				sum[i][j] = 0;
		}
		for (i64 key = 0; key < end; key += n) {
			__align__(16) float s[8][keys] = {};
			copies_but<1>();
			__syncthreads();
			meet(s, q, k, me);
			__syncthreads();
			if (key + n < end)
				k.template fill<8 * across>(ks + (key + n) * a.krow, a.krow, a.s - key - n, a.e);
			copies_end();
			bool edge = a.masking != no_mask || key + n > a.s || (a.causal && key + n > row + 1);
			// Unfused, so that the greatest score minus itself is 0.
#pragma unroll
			for (int i = 0; i < 8; i++)
#pragma unroll
				for (int j = 0; j < keys; j++)
					s[i][j] = __fmul_rn(s[i][j], scale);
			if (edge)
				window(a, mask, zm, row, key).hide(s, a, me);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				float greatest = top[i];
#pragma unroll
				for (int j = 0; j < keys; j++)
					greatest = fmaxf(greatest, s[i][j]);
#pragma unroll
				for (int lane = 2; lane < 2 * across; lane *= 2)
					greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, lane));
				float base = greatest == -INFINITY ? 0 : greatest, shrink = power_of_two(__fmul_rn(top[i] - base, log2e));
				top[i] = greatest;
				all[i] *= shrink;
#pragma unroll
				for (int j = 0; j < keys; j++)
					all[i] += s[i][j] = power_of_two(__fmul_rn(s[i][j] - base, log2e));
#pragma unroll
				for (int j = 0; j < columns; j++)
					sum[i][j] *= shrink;
			}
			copies_but<1>();
			__syncthreads();
#pragma unroll
			for (int part = 0; part < keys; part += most) { // a row belongs to one warp
#pragma unroll
				for (int i = 0; i < 8; i++)
					p.template put<across>(*(float(*)[most])&s[i][part], spread<8, 8>::at(me.y, i) - i % 4, i % 4, me.x);
				__syncwarp();
				combine(sum, p, v, part * across, me);
				__syncwarp();
			}
			__syncthreads();
			if (key + n < end)
				v.template fill<8 * across>(vs + (key + n) * a.vrow, a.vrow, a.s - key - n, a.w);
			copies_end();
		}
#pragma unroll
		for (int i = 0; i < 8; i++) {
#pragma unroll
			for (int lane = 2; lane < 2 * across; lane *= 2)
				all[i] += __shfl_xor_sync(~0u, all[i], lane);
			i64 query = row + spread<8, 8>::at(me.y, i);
			if (me.x == 0 && query < a.l)
				sums[z * a.l + query] = {seen(top[i]), 1 / (double)all[i]};
			float share = all[i] == 0 ? 0 : 1 / all[i];
#pragma unroll
			for (int j = 0; j < columns; j++)
				sum[i][j] *= share;
		}
		rows_of(out + AT(o) + row * a.orow, a.orow, a.l - row, a.w, sum, me, false);
	}
};

// attention_own sets own to each query's sum of the products of its result and the result's
// gradient, and the following words elements to 0. As many threads of a warp share a query as there
// are packs of its columns, rounded up to a power of two. They work on two queries at once.
extern "C" __global__ void __launch_bounds__(256, 4) attention_own_f32(float *own, const float *dout, const float *out, i64 words, attention a) {
	EACH(i, words)
		own[a.batch * a.l + i] = 0;
	int lanes = 1;
	while (lanes < 32 && 4 * lanes < a.w)
		lanes *= 2;
	int lane = threadIdx.x % lanes, queries = blockDim.x / lanes;
	u64 all = a.batch * a.l, step = queries * (u64)gridDim.x;
	bool whole = (a.w | a.orow) % 4 == 0 && aligned(dout, out);
	for (int d = 0; d < a.n; d++)
		whole = whole && a.o[d] % 4 == 0;
	for (u64 first = blockIdx.x * (u64)queries; first < all; first += 2 * step) {
		u64 i = first + threadIdx.x / lanes;
		double sum[2] = {};
		u64 at[2];
#pragma unroll
		for (int k = 0; k < 2; k++) {
			u64 q = i + k * step, z = divide(q, a.l);
			at[k] = AT(o) + (q - z * a.l) * a.orow;
		}
		for (i64 x = lane * 4; x < a.w; x += lanes * 4) {
			pack<float> g[2], v[2];
#pragma unroll
			for (int k = 0; k < 2; k++)
				if (i + k * step < all)
					g[k] = load<4>(dout + at[k] + x, whole, a.w - x), v[k] = load<4>(out + at[k] + x, whole, a.w - x);
#pragma unroll
			for (int k = 0; k < 2; k++)
				if (i + k * step < all)
#pragma unroll
					for (int l = 0; l < 4; l++)
						sum[k] += (double)g[k].v[l] * (double)v[k].v[l];
		}
#pragma unroll
		for (int k = 0; k < 2; k++) {
			for (int d = lanes / 2; d > 0; d /= 2)
				sum[k] += __shfl_xor_sync(~0u, sum[k], d);
			if (lane == 0 && i + k * step < all)
				own[i + k * step] = (float)sum[k];
		}
	}
}

// starts is where an element of the batch begins in each operand.
struct starts {
	i64 q, k, v, o, m, dq, dk, dv;

	// find sets the starts of element z.
	__device__ void find(const attention &a, u64 z) {
		q = k = v = o = m = dq = dk = dv = 0;
		for (int d = (int)a.n - 1; d >= 0; d--) {
			u64 rest = d > 0 ? divide(z, a.dims[d]) : 0;
			i64 i = z - rest * a.dims[d];
			q += i * a.q[d], k += i * a.k[d], v += i * a.v[d], o += i * a.o[d], m += i * a.m[d];
			dq += i * a.dq[d], dk += i * a.dk[d], dv += i * a.dv[d];
			z = rest;
		}
	}
};

// A block has n keys, and meets tiles of n queries, from the last one on. It adds to the gradient
// of a tile of queries in its turn, which is the number of its own tile, so that the results are
// the same in every run. It only waits for blocks with tiles of lower tickets. A block takes a
// ticket for a tile when it begins with it, so those blocks are working on their tiles or have
// finished them.
template <int n, int d> struct sloping {
	enum { across = 16, rows = n / 8, keys = n / across, columns = d / across };
	sheet<n, d, (keys < 4 ? keys : 4)> k, v;
	sheet<n, d> q, g;
	sheet<n, n> p;
	float tops[n], shares[n], owns[n];

	__device__ void slope(float *dq, float *dk, float *dv, const float *own, unsigned *turns, float *dmask, const float *dout, const summed *sums, const float *qs, const float *ks,
		const float *vs, const void *mask, const attention &a, u64 tile, u64 z, const starts &at) {
		corner<across> me;
		float scale = (float)a.scale;
		i64 key = tile * n, first = a.causal && !dmask ? key : 0;
		qs += at.q;
		dout += at.o;
		dq += at.dq;
		turns += z * ((a.l + n - 1) / n);
		__align__(16) float of_keys[rows][columns] = {}, of_values[rows][columns] = {};
		i64 last = (a.l - 1) / n * n, row = last;
		// finish is called after a barrier.
		auto finish = [&](i64 row) {
			if (threadIdx.x == 0) {
				__threadfence();
				*(volatile unsigned *)(turns + row / n) = (unsigned)tile + 1;
			}
		};
		k.template fill<128>(ks + at.k + key * a.krow, a.krow, a.s - key, a.e);
		v.template fill<128>(vs + at.v + key * a.vrow, a.vrow, a.s - key, a.w);
		q.template fill<128>(qs + row * a.qrow, a.qrow, a.l - row, a.e);
		g.template fill<128>(dout + row * a.orow, a.orow, a.l - row, a.w);
		copies_end();
		summed next;
		float next_own;
		auto look = [&](i64 row) {
			bool there = threadIdx.x < n && row >= first && row + threadIdx.x < a.l;
			next = there ? sums[z * a.l + row + threadIdx.x] : summed{0, 0};
			next_own = there ? own[z * a.l + row + threadIdx.x] : 0;
		};
		look(row);
		for (; row >= first; row -= n) {
			if (threadIdx.x < n) {
				tops[threadIdx.x] = (float)next.top;
				shares[threadIdx.x] = (float)next.share;
				owns[threadIdx.x] = next_own;
			}
			look(row - n);
			copies_but<0>();
			__syncthreads();
			if (row < last)
				finish(row + n);
			__align__(16) float weight[rows][keys] = {}, slope[rows][keys] = {};
			meet(weight, q, k, me);
			bool edge = a.masking != no_mask || row + n > a.l || key + n > a.s || (a.causal && key + n > row + 1);
#pragma unroll
			for (int i = 0; i < rows; i++)
#pragma unroll
				for (int j = 0; j < keys; j++)
					weight[i][j] = __fmul_rn(weight[i][j], scale);
			if (edge)
				window(a, mask, at.m, row, key).hide(weight, a, me);
#pragma unroll
			for (int i = 0; i < rows; i++) {
				unsigned y = spread<rows, 8>::at(me.y, i);
				float top = tops[y], share = shares[y];
#pragma unroll
				for (int j = 0; j < keys; j++)
					weight[i][j] = weight[i][j] == -INFINITY ? 0 : power_of_two(__fmul_rn(weight[i][j] - top, log2e)) * share;
				p.template put<across>(weight[i], y - i % 4, i % 4, me.x);
			}
			meet(slope, g, v, me);
			__syncthreads();
			combine_down(of_values, p, g, me);
			__syncthreads();
			if (row > first)
				g.template fill<128>(dout + (row - n) * a.orow, a.orow, n, a.w);
			copies_end();
#pragma unroll
			for (int i = 0; i < rows; i++) {
				unsigned y = spread<rows, 8>::at(me.y, i);
#pragma unroll
				for (int j = 0; j < keys; j++)
					slope[i][j] = weight[i][j] == 0 ? 0 : weight[i][j] * (slope[i][j] - owns[y]);
			}
			if (dmask) {
#pragma unroll
				for (int i = 0; i < rows; i++)
#pragma unroll
					for (int j = 0; j < keys; j++) {
						i64 y = row + spread<rows, 8>::at(me.y, i), x = key + spread<keys, across>::at(me.x, j);
						if (y < a.l && x < a.s)
							dmask[(z * a.l + y) * a.s + x] = slope[i][j];
					}
			}
#pragma unroll
			for (int i = 0; i < rows; i++) {
#pragma unroll
				for (int j = 0; j < keys; j++)
					slope[i][j] *= scale;
				p.template put<across>(slope[i], spread<rows, 8>::at(me.y, i) - i % 4, i % 4, me.x);
			}
			__syncthreads();
			// The turn is read before the products, which take longer. Each warp waits for it alone:
			// it lasts until finish, which follows a barrier, so every warp sees it.
			unsigned *turn = turns + row / n, now = threadIdx.x % 32 == 0 ? *(volatile unsigned *)turn : 0;
			combine_down(of_keys, p, q, me);
			__syncthreads();
			if (row > first)
				q.template fill<128>(qs + (row - n) * a.qrow, a.qrow, n, a.e);
			copies_end();
			__align__(16) float of_queries[rows][columns] = {};
			combine(of_queries, p, k, 0, me);
			if (threadIdx.x % 32 == 0) {
				while (now != tile) {
					__nanosleep(32);
					now = *(volatile unsigned *)turn;
				}
				__threadfence();
			}
			__syncwarp();
			rows_of(dq + row * a.dqrow, a.dqrow, a.l - row, a.e, of_queries, me, tile > 0);
		}
		copies_but<0>();
		__syncthreads();
		if (first <= last)
			finish(first);
		rows_of(dk + at.dk + key * a.dkrow, a.dkrow, a.s - key, a.e, of_keys, me, false);
		rows_of(dv + at.dv + key * a.dvrow, a.dvrow, a.s - key, a.w, of_values, me, false);
	}
};

// An edition is for queries, keys and values of up to d columns, with tiles of n keys. A launch of
// the first kernel has 8 times across threads, and dynamic shared memory for an attending. A launch
// of the second one has 128 threads, and dynamic shared memory for a sloping. Long rows of a causal
// attention come first, so that short ones fill the gaps. The words after own are the turn of each
// tile of queries, and the next ticket.
#define EDITION(d, n, across) \
	extern "C" __global__ void __launch_bounds__(8 * across) attention_##d##_f32(float *out, summed *sums, const float *q, const float *k, const float *v, const void *mask, attention a) { \
		for (u64 at = blockIdx.x, tiles = (a.l + 63) / 64; at < tiles * a.batch; at += gridDim.x) \
			((attending<n, d, across> *)dynamic_shared)->attend(out, sums, q, k, v, mask, a, tiles - 1 - divide(at, a.batch), at - divide(at, a.batch) * a.batch); \
	} \
	extern "C" __global__ void __launch_bounds__(128) attention_grad_##d##_f32(float *dq, float *dk, float *dv, const float *own, float *dmask, const float *dout, const summed *sums, \
		const float *q, const float *k, const float *v, const void *mask, attention a) { \
		__shared__ unsigned ticket; \
		__shared__ starts from; \
		unsigned *turns = (unsigned *)own + a.batch * a.l; \
		for (u64 tiles = (a.s + n - 1) / n;;) { \
			__syncthreads(); \
			if (threadIdx.x == 0) { \
				ticket = atomicAdd(turns + a.batch * ((a.l + n - 1) / n), 1); \
				from.find(a, ticket - divide(ticket, a.batch) * a.batch); \
			} \
			__syncthreads(); \
			u64 at = ticket, tile = divide(at, a.batch); \
			if (tile >= tiles) \
				break; \
			((sloping<n, d> *)dynamic_shared)->slope(dq, dk, dv, own, turns, dmask, dout, sums, q, k, v, mask, a, tile, at - tile * a.batch, from); \
		} \
	}
EDITION(32, 64, 8)
EDITION(64, 64, 8)
EDITION(128, 32, 16)
