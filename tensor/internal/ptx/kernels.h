// Shared by the kernels of package tensor. Every kernel has an edition for float and one for
// double, and strides over its grid, so that any grid computes any size. Sums and transcendental
// functions are computed in double, in an order that depends only on the sizes, so that the results
// are the same in every run.

#pragma once

typedef long long i64;
typedef unsigned long long u64;

#define FLOATS(def) def(float, f32) def(double, f64)
#define EACH(i, n) for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < (n); i += gridDim.x * (u64)blockDim.x)

// bfloat16 is the upper half of a float. A float is rounded to the nearest bfloat16, ties to even.
// NaN stays NaN.
struct bfloat16 {
	unsigned short bits;
	bfloat16() = default;
	__device__ explicit bfloat16(float v) {
		unsigned b = __float_as_uint(v);
		bits = (unsigned short)(v != v ? b >> 16 | 0x40 : (b + 0x7fff + (b >> 16 & 1)) >> 16);
	}
	__device__ operator float() const { return __uint_as_float((unsigned)bits << 16); }
};

// sums is the type in which products of T are added.
template <class T> struct sums { typedef T type; };
template <> struct sums<bfloat16> { typedef float type; };

enum { max_dims = 8 };

// divide is a / b. It divides 32-bit numbers if both fit, which is several times as fast.
static __device__ u64 divide(u64 a, u64 b) { return (a | b) >> 32 ? a / b : (unsigned)a / (unsigned)b; }

static __device__ u64 offset(u64 i, i64 n, const i64 *dims, const i64 *strides) {
	u64 at = 0;
	for (int d = (int)n - 1; d > 0; d--) {
		u64 rest = divide(i, dims[d]);
		at += (i - rest * dims[d]) * strides[d];
		i = rest;
	}
	return n > 0 ? at + i * strides[0] : at;
}

// total is a sum of one thread. The sum of floats is exact enough in double; for doubles it also
// keeps the rounding errors.
template <class T> struct total {
	double sum = 0;
	__device__ void add(double v) { sum += v; }
	__device__ double value() const { return sum; }
};
template <> struct total<double> {
	double sum = 0, lost = 0;
	__device__ void add(double v) {
		double t = sum + v, back = t - sum;
		lost += (sum - (t - back)) + (v - back);
		sum = t;
	}
	// lost is NaN for infinities.
	__device__ double value() const { return lost == lost ? sum + lost : sum; }
};

static __device__ double warp_sum(double v) {
	for (int d = 16; d > 0; d /= 2)
		v += __shfl_xor_sync(~0u, v, d);
	return v;
}

// block_sum is the sum of v over the block's threads, for each of them. s has 33 slots.
static __device__ double block_sum(double v, double *s) {
	v = warp_sum(v);
	int warps = (blockDim.x + 31) / 32;
	if (warps == 1)
		return v;
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		s[threadIdx.x / 32] = v;
	__syncthreads();
	v = 0;
	for (int w = 0; w < warps; w++)
		v += s[w];
	return v;
}

static __device__ double warp_max(double v) {
	for (int d = 16; d > 0; d /= 2)
		v = fmax(v, __shfl_xor_sync(~0u, v, d));
	return v;
}

// block_max is the greatest v of the block's threads, for each of them. NaN is ignored. s has 33
// slots.
static __device__ double block_max(double v, double *s) {
	v = warp_max(v);
	int warps = (blockDim.x + 31) / 32;
	if (warps == 1)
		return v;
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		s[threadIdx.x / 32] = v;
	__syncthreads();
	v = s[0];
	for (int w = 1; w < warps; w++)
		v = fmax(v, s[w]);
	return v;
}

// comes_last is true in one of n blocks that share a ticket: the last one to call it, which sees
// everything that the others wrote before. The ticket is 0 before and after.
static __device__ bool comes_last(unsigned *ticket, unsigned n) {
	__shared__ bool last;
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0 && threadIdx.y == 0)
		last = atomicInc(ticket, n - 1) == n - 1;
	__syncthreads();
	if (last)
		__threadfence();
	return last;
}
