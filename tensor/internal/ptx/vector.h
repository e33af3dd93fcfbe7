// Shared by kernels that are limited by memory: a thread loads and stores several elements at once.

#pragma once

#include "kernels.h"

// pack is count elements that a thread loads or stores at once, by default 16 bytes.
template <class T, int count = 16 / sizeof(T)> struct __align__(sizeof(T) * count) pack {
	static constexpr int n = count;
	T v[n];
};

// load is the n elements at p. If they are not whole, which means aligned and not past the end, it
// is the first count of them, one by one, and 0 for the others.
template <int n, class T> static __device__ pack<T, n> load(const T *p, bool whole, u64 count = n) {
	if (whole)
		return *(const pack<T, n> *)p;
	pack<T, n> v;
#pragma unroll
	for (int k = 0; k < n; k++)
		v.v[k] = k < count ? p[k] : (T)0;
	return v;
}

// store writes the elements that load reads with the same arguments.
template <class T, int n> static __device__ void store(T *p, const pack<T, n> &v, bool whole, u64 count = n) {
	if (whole) {
		*(pack<T, n> *)p = v;
		return;
	}
#pragma unroll
	for (int k = 0; k < n; k++)
		if (k < count)
			p[k] = v.v[k];
}

// aligned reports whether there can be packs of 16 bytes at all pointers. Null is aligned.
template <class... P> static __device__ bool aligned(P... p) { return ((... | (u64)p) & 15) == 0; }

// map_from sets dst[i] to f of the elements i of x. A thread has packs of them if all are aligned,
// and if there are at least least elements.
template <class T, class F, class... X> static __device__ void map_from(u64 least, u64 n, F f, T *dst, const X *...x) {
	constexpr int w = pack<T>::n;
	u64 packs = n >= least && aligned(dst, x...) ? n / w : 0;
	EACH(i, packs) {
		auto one = [&](auto... v) {
			pack<T> out;
#pragma unroll
			for (int k = 0; k < w; k++)
				out.v[k] = f(v.v[k]...);
			store(dst + w * i, out, true);
		};
		one(load<w>(x + w * i, true)...);
	}
	EACH(i, n - w * packs) dst[w * packs + i] = f(x[w * packs + i]...);
}

template <class T, class F, class... X> static __device__ void map(u64 n, F f, T *dst, const X *...x) { map_from(0, n, f, dst, x...); }

// block_sums is block_sum of two numbers. s has 66 slots.
static __device__ void block_sums(double &a, double &b, double *s) {
	a = warp_sum(a), b = warp_sum(b);
	int warps = (blockDim.x + 31) / 32;
	if (warps == 1)
		return;
	__syncthreads();
	if (threadIdx.x % 32 == 0) {
		s[threadIdx.x / 32 * 2] = a;
		s[threadIdx.x / 32 * 2 + 1] = b;
	}
	__syncthreads();
	a = b = 0;
	for (int w = 0; w < warps; w++) {
		a += s[2 * w];
		b += s[2 * w + 1];
	}
}
