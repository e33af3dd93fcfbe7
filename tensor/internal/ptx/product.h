// Shared by the kernels of matrix products.

#pragma once

#include "kernels.h"

// matrix is a factor: rows of the result for the first one, columns for the second. Element (i, k)
// is at[i*ld+k] if the factor is along the inner dimension, otherwise at[k*ld+i]. With vector, four
// elements are read at a time.
struct matrix {
	const float *at;
	u64 n, ld;
	bool vector;
};

static __device__ float4 four(const float *p, i64 there, bool vector) {
	if (vector && there >= 4)
		return *(const float4 *)p;
	float4 v;
	v.x = there > 0 ? p[0] : 0;
	v.y = there > 1 ? p[1] : 0;
	v.z = there > 2 ? p[2] : 0;
	v.w = there > 3 ? p[3] : 0;
	return v;
}

static __device__ void axpy(float4 &to, float a, const float4 &x) {
	to.x += a * x.x;
	to.y += a * x.y;
	to.z += a * x.z;
	to.w += a * x.w;
}

static __device__ void join(float4 &to, const float4 &v) { axpy(to, 1, v); }

// then describes the end of a product: a bias for each column, ReLU, the sums of the first factor's
// rows over the inner dimension, and 0 where the element of keep at the result's position is not
// above 0, as in the gradient of ReLU.
struct then {
	const float *bias;
	bool relu;
	float *sums;
	const float *keep;

	// kept returns the elements of keep for four results of row i, from column j of n on.
	__device__ float4 kept(u64 i, u64 j, u64 n) const {
		if (!keep || j >= n)
			return make_float4(1, 1, 1, 1);
		const float *k = keep + i * n + j;
		return four(k, (i64)(n - j), (size_t)k % 16 == 0);
	}
};

// finish writes four results of row i, from column j of n on.
static __device__ void finish(float *c, u64 i, u64 j, u64 n, const float4 &v, const float4 &kept, const then &t) {
	if (j >= n)
		return;
	float of[4] = {v.x, v.y, v.z, v.w}, k[4] = {kept.x, kept.y, kept.z, kept.w};
#pragma unroll
	for (int q = 0; q < 4; q++) {
		if (t.bias && j + q < n)
			of[q] += t.bias[j + q];
		if ((t.relu && of[q] < 0) || k[q] <= 0)
			of[q] = 0;
	}
	float *to = c + i * n + j;
	if (n % 4 == 0) {
		*(float4 *)to = make_float4(of[0], of[1], of[2], of[3]);
		return;
	}
	for (u64 q = 0; q < 4 && j + q < n; q++)
		to[q] = of[q];
}
