// Normalisations of channels. Statistics are double: the mean of each channel, followed by 1 over
// the standard deviation of each.

#include "vector.h"

#define ROWS(i, rows) for (u64 i = blockIdx.x; i < (rows); i += gridDim.x)

// places iterates over elements of a channel of x [n, c, inner], so that there is no division for
// each. at is the place of the current one in x.
struct places {
	u64 at, pos, inner, apart, rest, over;
	__device__ places(u64 e, u64 step, u64 channel, u64 c, u64 inner) : inner(inner), over((c - 1) * inner) {
		u64 image = divide(e, inner), more = divide(step, inner);
		pos = e - image * inner, at = (image * c + channel) * inner + pos;
		rest = step - more * inner, apart = more * c * inner + rest;
	}
	__device__ void next() {
		at += apart, pos += rest;
		if (pos >= inner)
			pos -= inner, at += over;
	}
};

// chunk is a part of the elements of a channel.
struct chunk {
	u64 channel, number, images, c, inner;

	__device__ chunk(u64 at, u64 parts, u64 images, u64 c, u64 inner) : channel(divide(at, parts)), number(at - channel * parts), images(images), c(c), inner(inner) {}

	// each iterates over the chunk, of which there are parts, in packs of n elements. A thread has
	// four loads in flight: read loads pack k from a place, and use gets the same arguments.
	// Before the first use, all threads call settle.
	template <int n, class R, class S, class U> __device__ void each(u64 parts, R read, S settle, U use) const {
		u64 packs = images * inner / n, e = packs * number / parts + threadIdx.x, to = packs * (number + 1) / parts;
		places next(e * n, blockDim.x * n, channel, c, inner);
		bool first = true;
		do {
			places p = next;
#pragma unroll
			for (int k = 0; k < 4; k++, next.next())
				if (e + k * blockDim.x < to)
					read(k, next.at);
			if (first)
				settle();
			first = false;
#pragma unroll
			for (int k = 0; k < 4; k++, p.next())
				if (e + k * blockDim.x < to)
					use(k, p.at);
			e += 4 * blockDim.x;
		} while (e - threadIdx.x < to);
	}
};

// shift_of is a number near the mean of a channel, its first element, so that the variance is not a
// difference of large numbers.
template <class T> static __device__ double shift_of(const T *x, u64 channel, u64 inner) {
	double v = (double)x[channel * inner];
	return isfinite(v) ? v : 0;
}

// parts_of sums a channel's pairs of parts, for each thread of a warp.
static __device__ void parts_of(const double *partial, u64 parts, double &first, double &second) {
	total<double> a, b;
	for (u64 p = threadIdx.x % 32; p < parts; p += 32) {
		a.add(partial[2 * p]);
		b.add(partial[2 * p + 1]);
	}
	first = warp_sum(a.value()), second = warp_sum(b.value());
}

// PACKS defines a kernel that calls def with packs of 16 bytes if images consist of them, otherwise
// with single elements.
#define PACKS(T, def, ...) \
	if (inner % pack<T>::n == 0) \
		def<T, pack<T>::n>(__VA_ARGS__); \
	else \
		def<T, 1>(__VA_ARGS__);

// batch_norm_sums: one block per part of a channel. The output starts with the weight of the batch
// in the new running statistics. Then each block writes the sum of the differences from the shift,
// and the sum of their squares.
template <class T, int n>
static __device__ void batch_norm_sums(double *partial, const T *x, const i64 *batches, double momentum, u64 images, u64 c, u64 inner, u64 parts) {
	__shared__ double s[66];
	bool whole = n == 1 || aligned(x);
	ROWS(at, c * parts) {
		chunk own(at, parts, images, c, inner);
		double shift = shift_of(x, own.channel, inner);
		total<T> sum, squares;
		pack<T, n> v[4];
		own.template each<n>(
			parts, [&](int k, u64 i) { v[k] = load<n>(x + i, whole); }, [] {},
			[&](int k, u64) {
#pragma unroll
				for (int l = 0; l < n; l++) {
					double one = (double)v[k].v[l] - shift;
					sum.add(one), squares.add(one * one);
				}
			});
		double a = sum.value(), b = squares.value();
		block_sums(a, b, s);
		if (threadIdx.x == 0) {
			partial[1 + 2 * at] = a;
			partial[2 + 2 * at] = b;
			if (at == 0)
				*partial = momentum == momentum ? momentum : 1 / (double)(*batches + 1);
		}
	}
}

#define BATCH_NORM_SUMS(T, t) \
	extern "C" __global__ void __launch_bounds__(128) batch_norm_sums_##t(double *partial, const T *x, const i64 *batches, double momentum, u64 n, u64 c, u64 inner, u64 parts) { \
		PACKS(T, batch_norm_sums, partial, x, batches, momentum, n, c, inner, parts) \
	}
FLOATS(BATCH_NORM_SUMS)

// batch_norm: one block per chunk of a channel. A channel's first one writes the statistics.
template <class T, int n>
static __device__ void batch_norm(T *y, double *stats, const T *x, const T *w, const T *b, T *running_mean, T *running_var, i64 *batches, const double *partial, double eps,
	u64 images, u64 c, u64 inner, u64 parts, u64 chunks, i64 training) {
	__shared__ double s[3];
	u64 all = images * inner;
	bool whole = n == 1 || aligned(x, y);
	ROWS(at, c * chunks) {
		chunk own(at, chunks, images, c, inner);
		u64 channel = own.channel;
		double mean, scale, shift;
		// The first warp computes these, while loads are in flight.
		auto settle = [&] {
			if (threadIdx.x < 32) {
				double variance, squares = 0;
				if (training) {
					double sum, more;
					parts_of(partial + 1 + 2 * channel * parts, parts, sum, more);
					double differ = sum / (double)all;
					mean = shift_of(x, channel, inner) + differ;
					squares = more - sum * differ;
					squares = squares < 0 ? 0 : squares;
					variance = squares / (double)all;
				} else {
					mean = (double)running_mean[channel];
					variance = (double)running_var[channel];
				}
				double rstd = 1 / sqrt(variance + eps);
				if (threadIdx.x == 0)
					s[0] = mean, s[1] = w ? rstd * (double)w[channel] : rstd, s[2] = b ? (double)b[channel] : 0;
				if (threadIdx.x == 0 && own.number == 0) {
					stats[channel] = mean;
					stats[c + channel] = rstd;
					if (training && running_mean) {
						double share = *partial;
						running_mean[channel] = (T)((1 - share) * (double)running_mean[channel] + share * mean);
						running_var[channel] = (T)((1 - share) * (double)running_var[channel] + share * (squares / (double)(all - 1)));
					}
					if (training && batches && channel == 0)
						++*batches;
				}
			}
			__syncthreads();
			mean = s[0], scale = s[1], shift = s[2];
		};
		pack<T, n> v[4];
		own.template each<n>(
			chunks, [&](int k, u64 i) { v[k] = load<n>(x + i, whole); }, settle,
			[&](int k, u64 i) {
#pragma unroll
				for (int l = 0; l < n; l++)
					v[k].v[l] = (T)(((double)v[k].v[l] - mean) * scale + shift);
				store(y + i, v[k], whole);
			});
		__syncthreads();
	}
}

#define BATCH_NORM(T, t) \
	extern "C" __global__ void __launch_bounds__(128, 6) batch_norm_##t(T *y, double *stats, const T *x, const T *w, const T *b, T *running_mean, T *running_var, i64 *batches, \
		const double *partial, double eps, u64 n, u64 c, u64 inner, u64 parts, u64 chunks, i64 training) { \
		PACKS(T, batch_norm, y, stats, x, w, b, running_mean, running_var, batches, partial, eps, n, c, inner, parts, chunks, training) \
	}
FLOATS(BATCH_NORM)

template <class T, int n>
static __device__ void batch_norm_grad_sums(double *partial, const T *dy, const T *x, const double *stats, u64 images, u64 c, u64 inner, u64 parts) {
	__shared__ double s[66];
	bool whole = n == 1 || aligned(dy, x);
	ROWS(at, c * parts) {
		chunk own(at, parts, images, c, inner);
		double mean = stats[own.channel];
		total<T> sum, dot;
		pack<T, n> g[4], v[4];
		own.template each<n>(
			parts, [&](int k, u64 i) { g[k] = load<n>(dy + i, whole), v[k] = load<n>(x + i, whole); }, [] {},
			[&](int k, u64) {
#pragma unroll
				for (int l = 0; l < n; l++) {
					double one = (double)g[k].v[l];
					sum.add(one), dot.add(one * ((double)v[k].v[l] - mean));
				}
			});
		double a = sum.value(), b = dot.value();
		block_sums(a, b, s);
		if (threadIdx.x == 0) {
			partial[2 * at] = a;
			partial[2 * at + 1] = b;
		}
	}
}

#define BATCH_NORM_GRAD_SUMS(T, t) \
	extern "C" __global__ void __launch_bounds__(128) batch_norm_grad_sums_##t(double *partial, const T *dy, const T *x, const double *stats, u64 n, u64 c, u64 inner, u64 parts) { \
		PACKS(T, batch_norm_grad_sums, partial, dy, x, stats, n, c, inner, parts) \
	}
FLOATS(BATCH_NORM_GRAD_SUMS)

template <class T, int n>
static __device__ void batch_norm_grad(T *dx, T *dw, T *db, const T *dy, const T *x, const T *w, const double *stats, const double *partial, u64 images, u64 c, u64 inner,
	u64 parts, u64 chunks, i64 training) {
	__shared__ double s[2];
	u64 all = images * inner;
	bool whole = n == 1 || aligned(dx, dy, x);
	ROWS(at, c * chunks) {
		chunk part(at, chunks, images, c, inner);
		u64 channel = part.channel;
		double mean = stats[channel], rstd = stats[c + channel], scale = w ? rstd * (double)w[channel] : rstd, own, along;
		auto settle = [&] {
			if (threadIdx.x < 32) {
				double sum, dot;
				parts_of(partial + 2 * channel * parts, parts, sum, dot);
				if (threadIdx.x == 0)
					s[0] = training ? sum / (double)all : 0, s[1] = training ? dot * rstd * rstd / (double)all : 0;
				if (threadIdx.x == 0 && part.number == 0) {
					if (dw)
						dw[channel] = (T)(dot * rstd);
					if (db)
						db[channel] = (T)sum;
				}
			}
			__syncthreads();
			own = s[0], along = s[1];
		};
		pack<T, n> g[4], v[4];
		auto read = [&](int k, u64 i) {
			if (dx)
				g[k] = load<n>(dy + i, whole), v[k] = load<n>(x + i, whole);
		};
		part.template each<n>(chunks, read, settle, [&](int k, u64 i) {
			if (!dx)
				return;
#pragma unroll
			for (int l = 0; l < n; l++)
				v[k].v[l] = (T)(scale * (training ? (double)g[k].v[l] - own - ((double)v[k].v[l] - mean) * along : (double)g[k].v[l]));
			store(dx + i, v[k], whole);
		});
		__syncthreads();
	}
}

#define BATCH_NORM_GRAD(T, t) \
	extern "C" __global__ void __launch_bounds__(128, 5) batch_norm_grad_##t(T *dx, T *dw, T *db, const T *dy, const T *x, const T *w, const double *stats, \
		const double *partial, u64 n, u64 c, u64 inner, u64 parts, u64 chunks, i64 training) { \
		PACKS(T, batch_norm_grad, dx, dw, db, dy, x, w, stats, partial, n, c, inner, parts, chunks, training) \
	}
FLOATS(BATCH_NORM_GRAD)
