// Sums and other statistics.

#include "vector.h"

// reduction is plan.Reduction: the kept dimensions and the summed ones, with their strides in x.
struct reduction {
	i64 kept, kept_dims[max_dims], kept_strides[max_dims];
	i64 summed, summed_dims[max_dims], summed_strides[max_dims];
};

// total_of is the sum of elements i, i + step, … below to. Four loads are in flight at once.
template <class T> static __device__ double total_of(const T *from, u64 i, u64 to, u64 step, const reduction &r) {
	total<T> own[4];
	for (; i < to; i += 4 * step) {
		T v[4];
#pragma unroll
		for (int k = 0; k < 4; k++)
			v[k] = i + k * step < to ? from[offset(i + k * step, r.summed, r.summed_dims, r.summed_strides)] : (T)0;
#pragma unroll
		for (int k = 0; k < 4; k++)
			own[k].add(v[k]);
	}
	return own[0].value() + own[1].value() + (own[2].value() + own[3].value());
}

// sum_rows: one block per output, or per part of its elements. The last block of an output adds the
// parts. There is a ticket per output.
#define SUM_ROWS(T, t) \
	extern "C" __global__ void __launch_bounds__(1024) \
	sum_rows_##t(T *dst, const T *x, u64 outputs, u64 count, double divisor, double *part, unsigned *tickets, u64 parts, reduction r) { \
		__shared__ double s[33]; \
		for (u64 at = blockIdx.x; at < outputs * parts; at += gridDim.x) { \
			u64 o = divide(at, parts), p = at - o * parts; \
			const T *from = x + offset(o, r.kept, r.kept_dims, r.kept_strides); \
			double v = block_sum(total_of(from, count * p / parts + threadIdx.x, count * (p + 1) / parts, blockDim.x, r), s); \
			if (parts > 1) { \
				if (threadIdx.x == 0) \
					part[at] = v; \
				if (!comes_last(tickets + o, parts)) \
					continue; \
				total<double> all; \
				for (u64 i = threadIdx.x; i < parts; i += blockDim.x) \
					all.add(part[o * parts + i]); \
				v = block_sum(all.value(), s); \
			} \
			if (threadIdx.x == 0) \
				dst[o] = (T)(v / divisor); \
		} \
	}
FLOATS(SUM_ROWS)
SUM_ROWS(bfloat16, bf16)

// columns describes sums of columns, 32 per block of 32 by up to 16 threads, or parts of them.
// There is a ticket for each 32 outputs.
struct columns {
	u64 outputs, parts;
	double *part;
	unsigned *tickets;
	__device__ u64 units() const { return (outputs + 31) / 32; }
	__device__ u64 part_at(u64 at) const { return divide(at, units()); }
};

// add_columns ends the sums of a block's columns, or of a part of them; v is a thread's sum. With
// several parts, the last block adds them.
template <class T> static __device__ void add_columns(T *dst, double v, double divisor, u64 at, const columns &c) {
	__shared__ double s[16][33];
	u64 p = c.part_at(at), unit = at - p * c.units(), first = unit * 32, o = first + threadIdx.x;
	for (bool last = c.parts == 1;; last = true) {
		__syncthreads();
		s[threadIdx.y][threadIdx.x] = v;
		__syncthreads();
		for (unsigned i = threadIdx.y; i < 32; i += blockDim.y) {
			v = warp_sum(threadIdx.x < blockDim.y ? s[threadIdx.x][i] : 0);
			if (threadIdx.x || first + i >= c.outputs)
				continue;
			if (last)
				dst[first + i] = (T)(v / divisor);
			else
				c.part[p * c.outputs + first + i] = v;
		}
		if (last || !comes_last(c.tickets + unit, c.parts))
			return;
		total<double> all;
		if (o < c.outputs)
			for (u64 i = threadIdx.y; i < c.parts; i += blockDim.y)
				all.add(c.part[i * c.outputs + o]);
		v = all.value();
	}
}

// total_of_columns is a warp's part of the sums of rows i to to, for each thread of one of 32
// adjacent columns, starting at x. Rows are apart elements apart. A thread loads 16 bytes, so that
// a warp loads several rows.
template <class T> static __device__ double total_of_columns(const T *x, u64 apart, u64 i, u64 to) {
	constexpr int n = pack<T>::n, threads = 32 / n, rows = 32 / threads;
	total<T> own[n];
	x += threadIdx.x % threads * n;
	for (i += threadIdx.y * rows + threadIdx.x / threads; i < to; i += 4 * rows * blockDim.y) {
		pack<T> v[4] = {};
#pragma unroll
		for (int k = 0; k < 4; k++)
			if (u64 row = i + k * rows * blockDim.y; row < to)
				v[k] = *(const pack<T> *)(x + row * apart);
#pragma unroll
		for (int k = 0; k < 4; k++)
#pragma unroll
			for (int c = 0; c < n; c++)
				own[c].add(v[k].v[c]);
	}
	double mine = 0;
#pragma unroll
	for (int c = 0; c < n; c++) {
		double sum = own[c].value();
		for (int d = 16; d >= threads; d /= 2)
			sum += __shfl_xor_sync(~0u, sum, d);
		sum = __shfl_sync(~0u, sum, threadIdx.x / n);
		if (threadIdx.x % n == c)
			mine = sum;
	}
	return mine;
}

// sum_columns: a column of threads shares an output.
#define SUM_COLUMNS(T, t) \
	extern "C" __global__ void __launch_bounds__(512, 2) \
	sum_columns_##t(T *dst, const T *x, u64 count, double divisor, u64 outputs, u64 parts, double *part, unsigned *tickets, reduction r) { \
		columns c = {outputs, parts, part, tickets}; \
		bool packed = sizeof(T) < 8 && r.kept == 1 && r.summed == 1 && r.kept_strides[0] == 1 && ((u64)x | r.summed_strides[0] * sizeof(T)) % 16 == 0; \
		for (u64 at = blockIdx.x; at < c.units() * c.parts; at += gridDim.x) { \
			u64 p = c.part_at(at), first = (at - p * c.units()) * 32, o = first + threadIdx.x; \
			u64 from = count * p / c.parts, to = count * (p + 1) / c.parts; \
			double v = 0; \
			if (packed && first + 32 <= c.outputs) \
				v = total_of_columns(x + first, r.summed_strides[0], from, to); \
			else if (o < c.outputs) \
				v = total_of(x + offset(o, r.kept, r.kept_dims, r.kept_strides), from + threadIdx.y, to, blockDim.y, r); \
			add_columns(dst, v, divisor, at, c); \
		} \
	}
FLOATS(SUM_COLUMNS)
SUM_COLUMNS(bfloat16, bf16)

// relu_bias_grad: the gradient of ReLU's argument, and the sums of its columns.
#define RELU_BIAS_GRAD(T, t) \
	extern "C" __global__ void __launch_bounds__(512, 2) relu_bias_grad_##t(T *dx, T *db, const T *dy, const T *y, u64 rows, columns c) { \
		for (u64 at = blockIdx.x; at < c.units() * c.parts; at += gridDim.x) { \
			u64 p = c.part_at(at), o = (at - p * c.units()) * 32 + threadIdx.x, to = rows * (p + 1) / c.parts; \
			total<T> own; \
			if (o < c.outputs) \
				for (u64 i = rows * p / c.parts + threadIdx.y; i < to; i += 4 * blockDim.y) { \
					T g[4], u[4]; \
					_Pragma("unroll") for (int k = 0; k < 4; k++) { \
						u64 row = i + k * blockDim.y, j = row * c.outputs + o; \
						g[k] = row < to ? dy[j] : (T)0; \
						u[k] = row < to ? y[j] : (T)0; \
					} \
					_Pragma("unroll") for (int k = 0; k < 4; k++) { \
						u64 row = i + k * blockDim.y; \
						T v = u[k] <= 0 ? (T)0 : g[k]; \
						if (row < to) \
							dx[row * c.outputs + o] = v; \
						own.add(v); \
					} \
				} \
			add_columns(db, own.value(), 1, at, c); \
		} \
	}
FLOATS(RELU_BIAS_GRAD)

// Statistics, and their gradients: one block per output, whose threads iterate over its elements.
// For the gradients, dst has the layout of x; nans makes NaNs equal.
#define GROUPS(o) for (u64 o = blockIdx.x; o < outputs; o += gridDim.x)
#define ELEMENTS(i, at) \
	for (u64 i = threadIdx.x, at; i < count && ((at = offset(i, r.summed, r.summed_dims, r.summed_strides)), true); i += blockDim.x)

static __device__ double plain(double v) { return v; }
static __device__ double negative(double v) { return -v; }
static __device__ double absolute(double v) { return fabs(v); }
static __device__ double sign(double v) { return v > 0 ? 1 : v < 0 ? -1 : 0; }

// greatest is the greatest f of elements i to count, or NaN if any is NaN.
template <double of(double) = plain, class T> static __device__ double greatest(const T *from, u64 count, const reduction &r, double *s, u64 i = 0) {
	double top = -INFINITY;
	int nan = 0;
	for (i += threadIdx.x; i < count; i += blockDim.x) {
		T v = from[offset(i, r.summed, r.summed_dims, r.summed_strides)];
		top = fmax(top, of((double)v));
		nan |= v != v;
	}
	top = block_max(top, s);
	return __syncthreads_or(nan) ? NAN : top;
}

template <class T> static __device__ double mean_of(const T *from, u64 count, const reduction &r, double *s) {
	total<T> own;
	ELEMENTS(i, at)
		own.add(from[at]);
	return block_sum(own.value(), s) / (double)count;
}

// amax and amin: one block per output, or per part of its elements, as in sum_rows.
#define EXTREME(T, name, of) \
	extern "C" __global__ void __launch_bounds__(1024) \
	name(T *dst, const T *x, u64 outputs, u64 count, double c, double *part, unsigned *tickets, u64 parts, reduction r) { \
		__shared__ double s[33]; \
		reduction line = {0, {}, {}, 1, {}, {1}}; \
		for (u64 at = blockIdx.x; at < outputs * parts; at += gridDim.x) { \
			u64 o = divide(at, parts), p = at - o * parts; \
			const T *from = x + offset(o, r.kept, r.kept_dims, r.kept_strides); \
			double top = greatest<of>(from, count * (p + 1) / parts, r, s, count * p / parts); \
			if (parts > 1) { \
				if (threadIdx.x == 0) \
					part[at] = top; \
				if (!comes_last(tickets + o, parts)) \
					continue; \
				top = greatest(part + o * parts, parts, line, s); \
			} \
			if (threadIdx.x == 0) \
				dst[o] = (T)of(top); \
		} \
	}
#define EXTREMES(T, t) EXTREME(T, amax_##t, plain) EXTREME(T, amin_##t, negative)
FLOATS(EXTREMES)

#define STATISTIC(T, t) \
	extern "C" __global__ void vector_norm_##t(T *dst, const T *x, u64 outputs, u64 count, double p, reduction r) { \
		__shared__ double s[33]; \
		GROUPS(o) { \
			const T *from = x + offset(o, r.kept, r.kept_dims, r.kept_strides); \
			double norm; \
			if (isinf(p)) { \
				norm = greatest<absolute>(from, count, r, s); \
			} else { \
				total<T> own; \
				ELEMENTS(i, at) { \
					double v = fabs((double)from[at]); \
					own.add(p == 1 ? v : v * v); \
				} \
				norm = block_sum(own.value(), s); \
				norm = p == 1 ? norm : sqrt(norm); \
			} \
			if (threadIdx.x == 0) \
				dst[o] = (T)norm; \
		} \
	} \
	extern "C" __global__ void logsumexp_##t(T *dst, const T *x, u64 outputs, u64 count, double c, reduction r) { \
		__shared__ double s[33]; \
		GROUPS(o) { \
			const T *from = x + offset(o, r.kept, r.kept_dims, r.kept_strides); \
			double top = greatest(from, count, r, s); \
			if (isinf(top)) \
				top = 0; \
			total<T> own; \
			ELEMENTS(i, at) \
				own.add(exp((double)from[at] - top)); \
			double sum = block_sum(own.value(), s); \
			if (threadIdx.x == 0) \
				dst[o] = (T)(top + log(sum)); \
		} \
	} \
	extern "C" __global__ void var_##t(T *dst, const T *x, u64 outputs, u64 count, double c, reduction r) { \
		__shared__ double s[33]; \
		GROUPS(o) { \
			const T *from = x + offset(o, r.kept, r.kept_dims, r.kept_strides); \
			double mean = mean_of(from, count, r, s); \
			total<T> own; \
			ELEMENTS(i, at) { \
				double d = (double)from[at] - mean; \
				own.add(d * d); \
			} \
			double sum = block_sum(own.value(), s); \
			if (threadIdx.x == 0) \
				dst[o] = (T)(sum / fmax(0., (double)count - c)); \
		} \
	}
FLOATS(STATISTIC)

#define STATISTIC_GRAD(T, t) \
	static __device__ void share_##t(T *dst, const T *dy, const T *x, const T *y, u64 outputs, u64 count, bool nans, const reduction &r) { \
		__shared__ double s[33]; \
		GROUPS(o) { \
			u64 base = offset(o, r.kept, r.kept_dims, r.kept_strides); \
			const T *from = x + base; \
			T top = y[o]; \
			bool nan = nans && top != top; \
			double own = 0; \
			ELEMENTS(i, at) \
				own += from[at] == top || (nan && from[at] != from[at]); \
			double n = block_sum(own, s); \
			T part = (T)((double)dy[o] / n), rest = n > 0 ? (T)0 : (T)NAN; \
			ELEMENTS(i, at) \
				dst[base + at] = from[at] == top || (nan && from[at] != from[at]) ? part : rest; \
		} \
	} \
	extern "C" __global__ void amax_grad_##t(T *dst, const T *dy, const T *x, const T *y, u64 outputs, u64 count, double c, reduction r) { \
		share_##t(dst, dy, x, y, outputs, count, false, r); \
	} \
	extern "C" __global__ void max_grad_##t(T *dst, const T *dy, const T *x, const T *y, u64 outputs, u64 count, double c, reduction r) { \
		share_##t(dst, dy, x, y, outputs, count, true, r); \
	} \
	extern "C" __global__ void logsumexp_grad_##t(T *dst, const T *dy, const T *x, const T *y, u64 outputs, u64 count, double c, reduction r) { \
		GROUPS(o) { \
			u64 base = offset(o, r.kept, r.kept_dims, r.kept_strides); \
			double d = dy[o], all = y[o]; \
			ELEMENTS(i, at) \
				dst[base + at] = (T)(d * exp((double)x[base + at] - all)); \
		} \
	} \
	extern "C" __global__ void vector_norm_grad_##t(T *dst, const T *dy, const T *x, const T *y, u64 outputs, u64 count, double p, reduction r) { \
		__shared__ double s[33]; \
		GROUPS(o) { \
			u64 base = offset(o, r.kept, r.kept_dims, r.kept_strides); \
			double d = dy[o], norm = y[o], ties = 0; \
			if (isinf(p)) { \
				ELEMENTS(i, at) \
					ties += fabs((double)x[base + at]) == norm; \
				ties = block_sum(ties, s); \
			} \
			ELEMENTS(i, at) { \
				double v = x[base + at]; \
				if (p == 1) \
					v = d * sign(v); \
				else if (p == 2) \
					v = norm == 0 ? 0 : d * (v / norm); \
				else \
					v = fabs(v) == norm ? d / ties * sign(v) : 0; \
				dst[base + at] = (T)v; \
			} \
		} \
	} \
	extern "C" __global__ void var_grad_##t(T *dst, const T *dy, const T *x, const T *y, u64 outputs, u64 count, double c, reduction r) { \
		__shared__ double s[33]; \
		GROUPS(o) { \
			u64 base = offset(o, r.kept, r.kept_dims, r.kept_strides); \
			double mean = mean_of(x + base, count, r, s), scale = 2 / ((double)count - c) * (double)dy[o]; \
			ELEMENTS(i, at) \
				dst[base + at] = (T)(scale * ((double)x[base + at] - mean)); \
		} \
	}
FLOATS(STATISTIC_GRAD)
