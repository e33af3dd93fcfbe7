// Normalisations of rows. Statistics are double: the mean of each row, followed by 1 over the
// standard deviation of each.

#include "vector.h"

#define ROWS(i, rows) for (u64 i = blockIdx.x; i < (rows); i += gridDim.x)

// plan is plan.RowNorm.
struct plan {
	u64 n, groups, per, inner;
	double eps;
	i64 centered;
};

// first_weight is the number of the weight of a row's first element.
static __device__ u64 first_weight(u64 r, const plan &d) { return d.groups == 1 ? 0 : r % d.groups * d.per; }

// weights is the weights of elements j to j + n of a row, of which w is the first, or copies of
// none.
template <int n, class T> static __device__ pack<T, n> weights(const T *w, u64 j, u64 cols, u64 inner, T none, bool whole) {
	if (w && inner == 1)
		return load<n>(w + j, whole, cols - j);
	pack<T, n> p;
	u64 at = w ? divide(j, inner) : 0, rest = j - at * inner;
#pragma unroll
	for (int k = 0; k < n; k++) {
		p.v[k] = w && j + k < cols ? w[at] : none;
		if (++rest == inner)
			rest = 0, at++;
	}
	return p;
}

// A block has a row. Each thread keeps the first packs of its part of the row in registers.
// each_kept calls use with their places and numbers. each also calls use for the remaining packs,
// each of which read loads as number kept.
enum { kept = 3 };
template <int n, class U> static __device__ void each_kept(u64 cols, U use) {
	unsigned j = threadIdx.x * n, step = blockDim.x * n, end = (unsigned)min(cols, (u64)1 << 30);
#pragma unroll
	for (int e = 0; e < kept; e++)
		if (j + e * step < end)
			use(j + e * step, e);
}
template <int n, class R, class U> static __device__ void each(u64 cols, R read, U use) {
	each_kept<n>(cols, use);
#pragma unroll 1
	for (u64 j = (threadIdx.x + kept * blockDim.x) * n; j < cols; j += blockDim.x * n) {
		read(j, kept);
		use(j, kept);
	}
}

// reread makes the compiler convert v to double again, instead of keeping the result in registers.
#ifdef __CUDACC__
static __device__ void reread(float &v) { asm("" : "+f"(v)); }
#else
static void reread(float &) {}
#endif
static __device__ void reread(double &) {}

// normalize is of x, or of x + other if there is sum. It writes x + other to sum, which may be the
// memory of either.
template <class T, bool whole>
static __device__ void normalize(T *sum, T *y, double *stats, const T *x, const T *other, const T *w, const T *b, const plan &d) {
	__shared__ double s[33];
	constexpr int n = pack<T>::n;
	u64 rows = d.n * d.groups, cols = d.per * d.inner;
	ROWS(r, rows) {
		const T *row = x + r * cols;
		u64 g = first_weight(r, d);
		pack<T, n> v[kept + 1];
		auto read = [&](u64 j, int e) { v[e] = load<n>(row + j, whole, cols - j); };
		each_kept<n>(cols, read);
		if (sum) {
			pack<T, n> o[kept + 1];
			auto read_other = [&](u64 j, int e) { o[e] = load<n>(other + r * cols + j, whole, cols - j); };
			auto read_both = [&](u64 j, int e) { read(j, e), read_other(j, e); };
			each_kept<n>(cols, read_other);
			each<n>(cols, read_both, [&](u64 j, int e) {
#pragma unroll
				for (int k = 0; k < n; k++)
					v[e].v[k] += o[e].v[k];
				store(sum + r * cols + j, v[e], whole, cols - j);
			});
			row = sum + r * cols;
		}
		double mean = 0;
		if (d.centered) {
			total<T> own;
			each<n>(cols, read, [&](u64, int e) {
#pragma unroll
				for (int k = 0; k < n; k++)
					own.add((double)v[e].v[k]);
			});
			mean = block_sum(own.value(), s) / (double)cols;
		}
		total<T> squares;
		each<n>(cols, read, [&](u64 j, int e) {
#pragma unroll
			for (int k = 0; k < n; k++) {
				reread(v[e].v[k]);
				double one = (double)v[e].v[k] - mean;
				if (whole || j + k < cols)
					squares.add(one * one);
			}
		});
		double rstd = 1 / sqrt(block_sum(squares.value(), s) / (double)cols + d.eps);
		if (threadIdx.x == 0) {
			stats[r] = mean;
			stats[rows + r] = rstd;
		}
		each<n>(cols, read, [&](u64 j, int e) {
			pack<T, n> scale = weights<n>(w ? w + g : w, j, cols, d.inner, (T)1, whole), shift = weights<n>(b ? b + g : b, j, cols, d.inner, (T)0, whole), out;
#pragma unroll
			for (int k = 0; k < n; k++) {
				reread(v[e].v[k]);
				out.v[k] = (T)(((double)v[e].v[k] - mean) * (rstd * (double)scale.v[k]) + (double)shift.v[k]);
			}
			store(y + r * cols + j, out, whole, cols - j);
		});
	}
}

// packed reports whether rows and weights consist of packs of 16 bytes, apart from their addresses.
template <class T> static __device__ bool packed(const plan &d) { return d.per * d.inner % pack<T>::n == 0; }

template <class T>
static __device__ __forceinline__ void normalize_rows(T *sum, T *y, double *stats, const T *x, const T *other, const T *w, const T *b, const plan &d) {
	if (packed<T>(d) && aligned(sum, y, x, other) && (d.inner > 1 || aligned(w, b)))
		normalize<T, true>(sum, y, stats, x, other, w, b, d);
	else
		normalize<T, false>(sum, y, stats, x, other, w, b, d);
}

#define NORM(T, t) \
	extern "C" __global__ void __launch_bounds__(256, 4) normalize_##t(T *y, double *stats, const T *x, const T *w, const T *b, plan d) { \
		normalize_rows<T>(0, y, stats, x, 0, w, b, d); \
	} \
	extern "C" __global__ void __launch_bounds__(256, 4) add_normalize_##t(T *sum, T *y, double *stats, const T *x, const T *other, const T *w, const T *b, plan d) { \
		normalize_rows<T>(sum, y, stats, x, other, w, b, d); \
	}
FLOATS(NORM)

// With onto the gradient is added to dx, rounded like a sum of two tensors, so the product before
// it must not become part of a multiply-add.
template <class T, bool whole>
static __device__ void normalize_grad(T *dx, const T *dy, const T *x, const T *w, const double *stats, i64 onto, const plan &d) {
	__shared__ double s[66];
	constexpr int n = pack<T>::n;
	u64 rows = d.n * d.groups, cols = d.per * d.inner;
	ROWS(r, rows) {
		const T *row = x + r * cols, *grad = dy + r * cols, *first = w ? w + first_weight(r, d) : w;
		pack<T, n> v[kept + 1], g[kept + 1];
		auto read = [&](u64 j, int e) { v[e] = load<n>(row + j, whole, cols - j), g[e] = load<n>(grad + j, whole, cols - j); };
		each_kept<n>(cols, read);
		double mean = stats[r], rstd = stats[rows + r];
		total<T> sum, dot;
		each<n>(cols, read, [&](u64 j, int e) {
			pack<T, n> scale = weights<n>(first, j, cols, d.inner, (T)1, whole);
#pragma unroll
			for (int k = 0; k < n; k++) {
				double one = (double)g[e].v[k] * (double)scale.v[k];
				sum.add(one);
				dot.add(one * ((double)v[e].v[k] - mean));
			}
		});
		double own = sum.value(), along = dot.value();
		block_sums(own, along, s);
		own = d.centered ? own / (double)cols : 0, along = along * rstd * rstd / (double)cols;
		each<n>(cols, read, [&](u64 j, int e) {
			pack<T, n> scale = weights<n>(first, j, cols, d.inner, (T)1, whole), out, had;
			if (onto)
				had = load<n>(dx + r * cols + j, whole, cols - j);
#pragma unroll
			for (int k = 0; k < n; k++) {
				reread(v[e].v[k]), reread(g[e].v[k]);
				double one = (double)g[e].v[k] * (double)scale.v[k];
				T made = (T)__dmul_rn(rstd, one - own - ((double)v[e].v[k] - mean) * along);
				out.v[k] = onto ? had.v[k] + made : made;
			}
			store(dx + r * cols + j, out, whole, cols - j);
		});
	}
}

#define NORM_GRAD(T, t) \
	extern "C" __global__ void __launch_bounds__(256, 3) normalize_grad_##t(T *dx, const T *dy, const T *x, const T *w, const double *stats, i64 onto, plan d) { \
		if (packed<T>(d) && aligned(dx, dy, x) && (d.inner > 1 || aligned(w))) \
			normalize_grad<T, true>(dx, dy, x, w, stats, onto, d); \
		else \
			normalize_grad<T, false>(dx, dy, x, w, stats, onto, d); \
	}
FLOATS(NORM_GRAD)

// put writes the gradients of weight k and bias k, or parts of them.
template <class T> static __device__ void put(T *dw, T *db, double *partial, u64 parts, u64 part, u64 weights, u64 k, double dot, double sum) {
	if (parts > 1) {
		partial[2 * part * weights + k] = dot;
		partial[(2 * part + 1) * weights + k] = sum;
		return;
	}
	if (dw)
		dw[k] = (T)dot;
	if (db)
		db[k] = (T)sum;
}

// normalize_columns is for weights with one element in each row. A block of 32 by 16 threads has 32
// weights. A warp loads packs of n of them, so that it has n rows at once. If there are several
// parts, the last block adds them, with a ticket for each 32 weights.
enum { columns_down = 16 };
template <class T, int n>
static __device__ void normalize_columns(T *dw, T *db, double *partial, unsigned *tickets, const T *dy, const T *x, const double *stats, u64 parts, const plan &d) {
	constexpr int across = 32 / n;
	__shared__ double both[2][columns_down][33];
	u64 weights = d.groups * d.per, wide = (weights + 31) / 32, rows = d.n * d.groups;
	bool whole = n == 1 || aligned(dy, x);
	for (u64 at = blockIdx.x; at < wide * parts; at += gridDim.x) {
		u64 part = divide(at, wide), unit = at - part * wide, to = d.n * (part + 1) / parts;
		u64 k = unit * 32 + threadIdx.x % across * n, group = divide(k, d.per);
		total<T> dot[n], sum[n];
		if (k < weights)
			for (u64 i = d.n * part / parts + threadIdx.y * n + threadIdx.x / across; i < to; i += columns_down * n) {
				u64 r = i * d.groups + group, j = i * weights + k;
				pack<T, n> g = load<n>(dy + j, whole), v = load<n>(x + j, whole);
				double mean = stats[r], rstd = stats[rows + r];
#pragma unroll
				for (int c = 0; c < n; c++) {
					double one = (double)g.v[c];
					sum[c].add(one);
					dot[c].add(one * ((double)v.v[c] - mean) * rstd);
				}
			}
#pragma unroll
		for (int c = 0; c < n; c++) {
			double a = dot[c].value(), b = sum[c].value();
			for (int o = 16; o >= across; o /= 2) {
				a += __shfl_xor_sync(~0u, a, o);
				b += __shfl_xor_sync(~0u, b, o);
			}
			if (threadIdx.x < across) {
				both[0][threadIdx.y][threadIdx.x * n + c] = a;
				both[1][threadIdx.y][threadIdx.x * n + c] = b;
			}
		}
		__syncthreads();
		// One warp ends the sums of the weights, and one those of the biases.
		u64 mine = unit * 32 + threadIdx.x;
		bool ends = threadIdx.y < 2 && mine < weights;
		T *dst = threadIdx.y ? db : dw;
		double v = 0;
		if (ends) {
#pragma unroll
			for (int i = 0; i < columns_down; i++)
				v += both[threadIdx.y][i][threadIdx.x];
			if (parts > 1)
				partial[(2 * part + threadIdx.y) * weights + mine] = v;
			else if (dst)
				dst[mine] = (T)v;
		}
		__syncthreads();
		if (parts == 1 || !comes_last(tickets + unit, parts) || !ends || !dst)
			continue;
		total<double> all;
#pragma unroll 8
		for (u64 p = 0; p < parts; p++)
			all.add(partial[(2 * p + threadIdx.y) * weights + mine]);
		dst[mine] = (T)all.value();
	}
}

#define NORM_COLUMNS(T, t) \
	extern "C" __global__ void __launch_bounds__(512, 2) \
	normalize_columns_##t(T *dw, T *db, double *partial, unsigned *tickets, const T *dy, const T *x, const double *stats, u64 parts, plan d) { \
		constexpr int n = sizeof(T) == 8 ? 2 : 4; \
		if (d.per % n == 0) \
			normalize_columns<T, n>(dw, db, partial, tickets, dy, x, stats, parts, d); \
		else \
			normalize_columns<T, 1>(dw, db, partial, tickets, dy, x, stats, parts, d); \
	}
FLOATS(NORM_COLUMNS)
NORM_COLUMNS(bfloat16, bf16)

// normalize_grads is normalize_grad and normalize_columns in one launch, for few rows with a single
// group. A block has 8 rows, one per warp, and then their columns. The last block adds the parts of
// all.
enum { warps = 8 };
#define NORM_GRADS(T, t) \
	extern "C" __global__ void __launch_bounds__(256) normalize_grads_##t(T *dx, T *dw, T *db, double *partial, unsigned *ticket, const T *dy, const T *x, const T *w, \
		const double *stats, i64 onto, plan d) { \
		u64 first = blockIdx.x * (u64)warps, r = first + threadIdx.x / 32, cols = d.per; \
		if (r < d.n) { \
			const T *row = x + r * cols, *grad = dy + r * cols; \
			double mean = stats[r], rstd = stats[d.n + r]; \
			total<T> sum, dot; \
			for (u64 j = threadIdx.x % 32; j < cols; j += 32) { \
				double v = (double)grad[j] * (w ? (double)w[j] : 1); \
				sum.add(v); \
				dot.add(v * ((double)row[j] - mean)); \
			} \
			double own = d.centered ? warp_sum(sum.value()) / (double)cols : 0, along = warp_sum(dot.value()) * rstd * rstd / (double)cols; \
			for (u64 j = threadIdx.x % 32; j < cols; j += 32) { \
				double v = (double)grad[j] * (w ? (double)w[j] : 1); \
				T made = (T)__dmul_rn(rstd, v - own - ((double)row[j] - mean) * along); \
				dx[r * cols + j] = onto ? dx[r * cols + j] + made : made; \
			} \
		} \
		for (u64 k = threadIdx.x; k < cols; k += blockDim.x) { \
			total<T> dot, sum; \
			_Pragma("unroll") for (int i = 0; i < warps; i++) \
				if (first + i < d.n) { \
					double g = (double)dy[(first + i) * cols + k]; \
					sum.add(g); \
					dot.add(g * ((double)x[(first + i) * cols + k] - stats[first + i]) * stats[d.n + first + i]); \
				} \
			put(dw, db, partial, gridDim.x, blockIdx.x, cols, k, dot.value(), sum.value()); \
		} \
		if (gridDim.x == 1 || !comes_last(ticket, gridDim.x)) \
			return; \
		for (u64 k = threadIdx.x; k < cols; k += blockDim.x) { \
			total<double> dots, sums; \
			_Pragma("unroll 4") for (unsigned p = 0; p < gridDim.x; p++) { \
				dots.add(partial[2 * p * cols + k]); \
				sums.add(partial[(2 * p + 1) * cols + k]); \
			} \
			put(dw, db, partial, 1, 0, cols, k, dots.value(), sums.value()); \
		} \
	}
FLOATS(NORM_GRADS)

// normalize_channels is for weights with many elements in each row. It has a block per weight, or
// per part of its elements, and a ticket per weight.
#define NORM_CHANNELS(T, t) \
	extern "C" __global__ void normalize_channels_##t(T *dw, T *db, double *partial, unsigned *tickets, const T *dy, const T *x, const double *stats, u64 parts, plan d) { \
		__shared__ double s[33]; \
		u64 weights = d.groups * d.per, rows = d.n * d.groups, all = d.n * d.inner; \
		ROWS(at, weights * parts) { \
			u64 k = at % weights, part = at / weights, to = all * (part + 1) / parts; \
			total<T> dot, sum; \
			for (u64 l = all * part / parts + threadIdx.x; l < to; l += blockDim.x) { \
				u64 n = divide(l, d.inner), r = n * d.groups + k / d.per, i = (r * d.per + k % d.per) * d.inner + l - n * d.inner; \
				double g = (double)dy[i]; \
				sum.add(g); \
				dot.add(g * ((double)x[i] - stats[r]) * stats[rows + r]); \
			} \
			double a = block_sum(dot.value(), s), b = block_sum(sum.value(), s); \
			if (threadIdx.x == 0) \
				put(dw, db, partial, parts, part, weights, k, a, b); \
			if (parts == 1 || !comes_last(tickets + k, parts)) \
				continue; \
			total<double> all_dots, all_sums; \
			for (u64 p = threadIdx.x; p < parts; p += blockDim.x) { \
				all_dots.add(partial[2 * p * weights + k]); \
				all_sums.add(partial[(2 * p + 1) * weights + k]); \
			} \
			a = block_sum(all_dots.value(), s), b = block_sum(all_sums.value(), s); \
			if (threadIdx.x == 0) \
				put(dw, db, partial, 1, 0, weights, k, a, b); \
		} \
	}
FLOATS(NORM_CHANNELS)
NORM_CHANNELS(bfloat16, bf16)
