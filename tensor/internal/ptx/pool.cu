// Pooling. A thread computes an element of a result or a gradient, and gathers its terms.

#include "kernels.h"

// pool is plan.Pool.
struct pool {
	i64 planes, h, w, p, q, r, s, sh, sw, ph, pw, dh, dw, adaptive, exclude, has_divisor, divisor;
};

// place is the position of element o in planes of rows by cols.
struct place {
	i64 plane, i, j;
	__device__ place(u64 o, i64 rows, i64 cols) {
		u64 row = divide(o, cols);
		plane = divide(row, rows);
		i = row - plane * rows;
		j = o - row * cols;
	}
};

// first_inside is the first element of a window after the padding.
static __device__ i64 first_inside(i64 at, i64 dilation) { return at < 0 ? at + (-at + dilation - 1) / dilation * dilation : at; }

#define MAX_POOL(T, t) \
	extern "C" __global__ void max_pool_##t(T *y, int *indices, const T *x, pool d) { \
		EACH(o, (u64)(d.planes * d.p * d.q)) { \
			place to(o, d.p, d.q); \
			const T *in = x + to.plane * d.h * d.w; \
			i64 top = to.i * d.sh - d.ph, left = to.j * d.sw - d.pw, bottom = top + (d.r - 1) * d.dh + 1, right = left + (d.s - 1) * d.dw + 1; \
			top = first_inside(top, d.dh); \
			left = first_inside(left, d.dw); \
			bottom = bottom < d.h ? bottom : d.h; \
			right = right < d.w ? right : d.w; \
			i64 at = top * d.w + left; \
			T best = in[at]; \
			for (i64 i = top; i < bottom; i += d.dh) \
				for (i64 j = left; j < right; j += d.dw) { \
					T v = in[i * d.w + j]; \
					if (v > best || v != v) { \
						best = v; \
						at = i * d.w + j; \
					} \
				} \
			y[o] = best; \
			indices[o] = (int)at; \
		} \
	}
FLOATS(MAX_POOL)

// windows is the range of windows, along one dimension, that may contain an element.
static __device__ void windows(i64 i, i64 size, i64 pad, i64 span, i64 stride, i64 *from, i64 *to) {
	i64 before = i + pad - span + 1; // the first window begins here or later
	*from = before > 0 ? divide(before + stride - 1, stride) : 0;
	*to = divide(i + pad, stride) + 1;
	*to = *to < size ? *to : size;
}

// apart reports whether each element is in at most one window. If so, a thread computes a window.
static __device__ bool apart(const pool &d) {
	return d.r == d.sh && d.s == d.sw && !d.ph && !d.pw && d.dh == 1 && d.dw == 1 && d.h == d.p * d.r && d.w == d.q * d.s;
}

#define MAX_POOL_GRAD(T, t) \
	extern "C" __global__ void max_pool_grad_##t(T *dx, const T *dy, const int *indices, pool d) { \
		if (apart(d)) { \
			EACH(o, (u64)(d.planes * d.p * d.q)) { \
				place from(o, d.p, d.q); \
				int best = indices[o], at = (int)(from.i * d.r * d.w + from.j * d.s); \
				T v = dy[o], *to = dx + from.plane * d.h * d.w; \
				for (int i = 0; i < (int)d.r; i++, at += (int)d.w) \
					for (int j = 0; j < (int)d.s; j++) \
						to[at + j] = at + j == best ? v : (T)0; \
			} \
			return; \
		} \
		EACH(o, (u64)(d.planes * d.h * d.w)) { \
			place to(o, d.h, d.w); \
			i64 at = to.i * d.w + to.j, p, bottom, left, right; \
			windows(to.i, d.p, d.ph, (d.r - 1) * d.dh + 1, d.sh, &p, &bottom); \
			windows(to.j, d.q, d.pw, (d.s - 1) * d.dw + 1, d.sw, &left, &right); \
			T sum = 0; \
			for (; p < bottom; p++) \
				for (i64 q = left; q < right; q++) { \
					i64 from = (to.plane * d.p + p) * d.q + q; \
					if (indices[from] == at) \
						sum += dy[from]; \
				} \
			dx[o] = sum; \
		} \
	}
FLOATS(MAX_POOL_GRAD)

// part is the range [from, to), along one dimension, whose average is result i, and the number of
// elements that count.
static __device__ i64 part(i64 i, i64 in, i64 out, i64 window, i64 stride, i64 pad, const pool &d, i64 *from, i64 *to) {
	if (d.adaptive) {
		*from = divide(i * in, out);
		*to = divide((i + 1) * in + out - 1, out);
		return *to - *from;
	}
	i64 a = i * stride - pad, b = a + window;
	b = b < in + pad ? b : in + pad;
	i64 all = b - a;
	*from = a > 0 ? a : 0;
	*to = b < in ? b : in;
	return d.exclude ? *to - *from : all;
}

#define AVG_POOL(T, t) \
	extern "C" __global__ void avg_pool_##t(T *y, const T *x, pool d) { \
		EACH(o, (u64)(d.planes * d.p * d.q)) { \
			place to(o, d.p, d.q); \
			const T *in = x + to.plane * d.h * d.w; \
			i64 top, bottom, left, right; \
			i64 n = part(to.i, d.h, d.p, d.r, d.sh, d.ph, d, &top, &bottom) * part(to.j, d.w, d.q, d.s, d.sw, d.pw, d, &left, &right); \
			double sum = 0; \
			for (i64 i = top; i < bottom; i++) \
				for (i64 j = left; j < right; j++) \
					sum += (double)in[i * d.w + j]; \
			y[o] = (T)(sum / (double)(d.has_divisor ? d.divisor : n)); \
		} \
	}
FLOATS(AVG_POOL)

#define AVG_POOL_GRAD(T, t) \
	extern "C" __global__ void avg_pool_grad_##t(T *dx, const T *dy, pool d) { \
		if (d.adaptive && d.p == 1 && d.q == 1) { \
			u64 pixels = d.h * d.w; \
			EACH(o, d.planes * pixels) dx[o] = dy[divide(o, pixels)] / (T)(d.has_divisor ? d.divisor : pixels); \
			return; \
		} \
		EACH(o, (u64)(d.planes * d.h * d.w)) { \
			place to(o, d.h, d.w); \
			i64 p, down, first, last; \
			if (d.adaptive) { \
				p = divide(to.i * d.p, d.h); \
				down = divide((to.i + 1) * d.p + d.h - 1, d.h); \
				first = divide(to.j * d.q, d.w); \
				last = divide((to.j + 1) * d.q + d.w - 1, d.w); \
			} else { \
				windows(to.i, d.p, d.ph, d.r, d.sh, &p, &down); \
				windows(to.j, d.q, d.pw, d.s, d.sw, &first, &last); \
			} \
			T sum = 0; \
			for (; p < down; p++) \
				for (i64 q = first; q < last; q++) { \
					i64 a, b; \
					i64 n = part(p, d.h, d.p, d.r, d.sh, d.ph, d, &a, &b) * part(q, d.w, d.q, d.s, d.sw, d.pw, d, &a, &b); \
					sum += dy[(to.plane * d.p + p) * d.q + q] / (T)(d.has_divisor ? d.divisor : n); \
				} \
			dx[o] = sum; \
		} \
	}
FLOATS(AVG_POOL_GRAD)
