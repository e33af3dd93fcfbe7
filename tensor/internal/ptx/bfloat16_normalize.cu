// Normalisations of rows of bfloat16. normalize.cu has those of float, and the gradients of the
// weights. A warp computes a short row, a block a long one.

#include "bfloat16.h"

// plan is plan.RowNorm.
struct plan {
	u64 n, groups, per, inner;
	double eps;
	i64 centered;
};

// several is neighbours that one instruction reads.
template <int n> struct __align__(2 * n) several { bfloat16 v[n]; };

// share is a thread's share of the rows, n elements at a time.
template <int n> struct share {
	u64 first, step, units, inner;
	__device__ several<n> at(const bfloat16 *row, u64 u) const { return ((const several<n> *)row)[u]; }
	// weights returns the weights of the elements u of a row. w is the weight of the row's first
	// element, or null.
	__device__ several<n> weights(const bfloat16 *w, u64 u, float none) const {
		if (w)
			return inner == 1 ? at(w, u) : at(w, divide(u, inner));
		several<n> all;
		for (int k = 0; k < n; k++)
			all.v[k] = (bfloat16)none;
		return all;
	}
};

// joined is the sum of v over the threads that share a row. s has 33 slots.
static __device__ double joined(double v, bool narrow, double *s) { return narrow ? warp_sum(v) : block_sum(v, s); }

template <int n>
static __device__ void normalize(bfloat16 *y, double *stats, const bfloat16 *x, const bfloat16 *w, const bfloat16 *b, bool narrow, const plan &d, double *s) {
	u64 rows = d.n * d.groups, cols = d.per * d.inner, together = narrow ? blockDim.x / 32 : 1;
	share<n> mine = {narrow ? threadIdx.x % 32 : threadIdx.x, narrow ? 32 : blockDim.x, cols / n, d.inner};
	for (u64 r = narrow ? blockIdx.x * together + threadIdx.x / 32 : blockIdx.x; r < rows; r += gridDim.x * together) {
		const bfloat16 *row = x + r * cols;
		u64 g = r % d.groups * d.per;
		double mean = 0, squares = 0;
		if (d.centered) {
			for (u64 u = mine.first; u < mine.units; u += mine.step) {
				several<n> v = mine.at(row, u);
				float part = 0;
#pragma unroll
				for (int k = 0; k < n; k++)
					part += (float)v.v[k];
				mean += part;
			}
			mean = joined(mean, narrow, s) / (double)cols;
		}
		// Split, so that elements near a mean far from 0 lose nothing.
		float middle = (float)mean, rest = (float)(mean - (double)middle);
		for (u64 u = mine.first; u < mine.units; u += mine.step) {
			several<n> v = mine.at(row, u);
#pragma unroll
			for (int k = 0; k < n; k++) {
				double off = (float)v.v[k] - middle - rest;
				// The squares need more digits than a float has.
				squares += off * off;
			}
		}
		double rstd = 1 / sqrt(joined(squares, narrow, s) / (double)cols + d.eps);
		if (mine.first == 0) {
			stats[r] = mean;
			stats[rows + r] = rstd;
		}
		float by = (float)rstd;
		for (u64 u = mine.first; u < mine.units; u += mine.step) {
			several<n> v = mine.at(row, u), scale = mine.weights(w ? w + g : w, u, 1), shift = mine.weights(b ? b + g : b, u, 0);
#pragma unroll
			for (int k = 0; k < n; k++)
				v.v[k] = (bfloat16)(((float)v.v[k] - middle - rest) * by * (float)scale.v[k] + (float)shift.v[k]);
			((several<n> *)(y + r * cols))[u] = v;
		}
	}
}

static __device__ bool in_eights(u64 per, u64 inner, const void *a, const void *b, const void *c, const void *d) {
	return inner == 1 && per % 8 == 0 && aligned(a, b, c, d);
}

extern "C" __global__ void normalize_bf16(bfloat16 *y, double *stats, const bfloat16 *x, const bfloat16 *w, const bfloat16 *b, i64 narrow, plan d) {
	__shared__ double s[33];
	if (in_eights(d.per, d.inner, y, x, w, b))
		normalize<8>(y, stats, x, w, b, narrow, d, s);
	else
		normalize<1>(y, stats, x, w, b, narrow, d, s);
}

template <int n>
static __device__ void normalize_grad(bfloat16 *dx, const bfloat16 *dy, const bfloat16 *x, const bfloat16 *w, const double *stats, bool narrow, const plan &d, double *s) {
	u64 rows = d.n * d.groups, cols = d.per * d.inner, together = narrow ? blockDim.x / 32 : 1;
	share<n> mine = {narrow ? threadIdx.x % 32 : threadIdx.x, narrow ? 32 : blockDim.x, cols / n, d.inner};
	for (u64 r = narrow ? blockIdx.x * together + threadIdx.x / 32 : blockIdx.x; r < rows; r += gridDim.x * together) {
		const bfloat16 *row = x + r * cols, *grad = dy + r * cols;
		u64 g = r % d.groups * d.per;
		double mean = stats[r], rstd = stats[rows + r], sum = 0, dot = 0;
		float middle = (float)mean, rest = (float)(mean - (double)middle);
		for (u64 u = mine.first; u < mine.units; u += mine.step) {
			several<n> v = mine.at(row, u), t = mine.at(grad, u), scale = mine.weights(w ? w + g : w, u, 1);
#pragma unroll
			for (int k = 0; k < n; k++) {
				double one = (float)t.v[k] * (float)scale.v[k];
				sum += one;
				dot += one * ((float)v.v[k] - middle - rest);
			}
		}
		double own = d.centered ? joined(sum, narrow, s) / (double)cols : 0, along = joined(dot, narrow, s) * rstd * rstd / (double)cols;
		float off = (float)own, slope = (float)along, by = (float)rstd;
		for (u64 u = mine.first; u < mine.units; u += mine.step) {
			several<n> v = mine.at(row, u), t = mine.at(grad, u), scale = mine.weights(w ? w + g : w, u, 1);
#pragma unroll
			for (int k = 0; k < n; k++)
				v.v[k] = (bfloat16)(by * ((float)t.v[k] * (float)scale.v[k] - off - ((float)v.v[k] - middle - rest) * slope));
			((several<n> *)(dx + r * cols))[u] = v;
		}
	}
}

extern "C" __global__ void normalize_grad_bf16(bfloat16 *dx, const bfloat16 *dy, const bfloat16 *x, const bfloat16 *w, const double *stats, i64 narrow, plan d) {
	__shared__ double s[33];
	if (in_eights(d.per, d.inner, dx, dy, x, w))
		normalize_grad<8>(dx, dy, x, w, stats, narrow, d, s);
	else
		normalize_grad<1>(dx, dy, x, w, stats, narrow, d, s);
}
