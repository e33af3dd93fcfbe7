// Convolutions without a library, as matrix products. The large factor is never stored: its
// elements are read from x, or dy, when a tile of them is loaded.

#include "conv.h"

// The three products have the same form. An element (l, j) of the large factor is b[e.b + c.b]
// where e = entry(l) and c = column(j), if the height e.h + c.h and the width e.w + c.w are inside
// of the picture, otherwise 0. An element (i, l) of the other factor is a[a_base + i * a_row +
// e.a]. The result (i, j) goes to out(j) + i * out_row.
struct entry {
	i64 a, b; // a is -1 for an entry that does not exist
	int h, w;
};
struct column {
	i64 b;
	int h, w;
};
enum { far = -(1 << 30) }; // outside of every picture

// forward: (channels of y) by (positions of all images), over the elements of the window in all
// channels of x.
struct forward {
	const plan &d;
	i64 m, n, depth, a_base, a_row, out_row, g;
	unsigned height, width;
	__device__ forward(const plan &d, i64 g) : d(d), m(d.k), n(d.n * d.p * d.q), depth(d.c * d.r * d.s), a_base(g * d.k * depth), a_row(depth),
		out_row(d.p * d.q), g(g), height(d.h), width(d.w) {}
	__device__ entry at(i64 l) const {
		int window = d.r * d.s, c = (int)l / window, rest = (int)l % window, r = rest / (int)d.s, s = rest % (int)d.s;
		int h = r * (int)d.dh, w = s * (int)d.dw;
		return entry{l, (c * d.h + h) * d.w + w, h, w};
	}
	__device__ column of(i64 j) const {
		i64 image = divide(j, out_row);
		int place = j - image * out_row, h = place / (int)d.q * (int)d.sh - (int)d.ph, w = place % (int)d.q * (int)d.sw - (int)d.pw;
		return column{((image * d.groups + g) * d.c * d.h + h) * d.w + w, h, w};
	}
	__device__ i64 out(i64 j) const {
		i64 image = divide(j, out_row);
		return (image * d.groups + g) * d.k * out_row + (j - image * out_row);
	}
};

// phase is one dimension of the pixels of x with the same remainder of the stride. Pixel first +
// stride * i sees y at start + i - t * back for the elements from + step * t of the window, t <
// count.
struct phase {
	int first, stride, pixels, from, step, count, back, start;
	__device__ phase(int first, int size, int stride, int pad, int dilation, int window) : first(first), stride(stride), from(0), step(1), back(1) {
		pixels = (size + stride - 1) / stride; // of the first remainder, which has the most
		int a = dilation, b = stride;
		while (b) {
			int c = a % b;
			a = b;
			b = c;
		}
		step = stride / a;
		back = dilation / a;
		while (from < step && from < window && (first + pad - from * (i64)dilation) % stride)
			from++;
		bool some = from < step && from < window;
		count = some ? (window - 1 - from) / step + 1 : 0;
		start = some ? (int)((first + pad - from * (i64)dilation) / stride) : 0;
	}
};

// backward: (channels of x) by (pixels of all images with the same remainder of the strides), over
// the elements of the window that meet them, in all channels of y.
struct backward {
	const plan &d;
	phase v, u; // down and across
	i64 m, n, depth, a_base, a_row, out_row, g, places;
	unsigned height, width;
	__device__ backward(const plan &d, i64 g, int down, int across) : d(d), v(down, d.h, d.sh, d.ph, d.dh, d.r), u(across, d.w, d.sw, d.pw, d.dw, d.s),
		m(d.c), n(d.n * v.pixels * u.pixels), depth(d.k * v.count * u.count), a_base(g * d.k * d.c * d.r * d.s), a_row(d.r * d.s), out_row(d.h * d.w), g(g),
		places(d.p * d.q), height(d.p), width(d.q) {}
	__device__ entry at(i64 l) const {
		int window = v.count * u.count, k = (int)l / window, rest = (int)l % window, r = rest / u.count, s = rest % u.count;
		int h = -r * v.back, w = -s * u.back;
		return entry{k * d.c * a_row + (v.from + r * v.step) * d.s + u.from + s * u.step, k * places + h * d.q + w, h, w};
	}
	__device__ void pixel(i64 j, i64 *image, int *i, int *k) const {
		int all = v.pixels * u.pixels;
		*image = divide(j, all);
		int rest = j - *image * all;
		*i = rest / u.pixels;
		*k = rest % u.pixels;
	}
	__device__ column of(i64 j) const {
		i64 image;
		int i, k;
		pixel(j, &image, &i, &k);
		int h = v.start + i, w = u.start + k;
		return column{(image * d.groups + g) * d.k * places + h * d.q + w, h, w};
	}
	__device__ i64 out(i64 j) const {
		i64 image;
		int i, k;
		pixel(j, &image, &i, &k);
		i64 h = v.first + (i64)i * v.stride, w = u.first + (i64)k * u.stride;
		return h < d.h && w < d.w ? (image * d.groups + g) * d.c * out_row + h * d.w + w : -1;
	}
};

// weights: (channels of y) by (elements of the window in all channels of x), over the positions of
// all images.
struct weights {
	const plan &d;
	i64 m, n, depth, a_base, a_row, out_row, g, to;
	unsigned height, width;
	__device__ weights(const plan &d, i64 g, i64 part) : d(d), m(d.k), n(d.c * d.r * d.s), depth(d.n * d.p * d.q), a_base(0), a_row(d.p * d.q), out_row(n), g(g),
		to((part * d.groups + g) * d.k * n), height(d.h), width(d.w) {}
	__device__ entry at(i64 l) const {
		i64 image = divide(l, a_row);
		int place = l - image * a_row, h = place / (int)d.q * (int)d.sh - (int)d.ph, w = place % (int)d.q * (int)d.sw - (int)d.pw;
		image = image * d.groups + g;
		return entry{image * d.k * a_row + place, (image * d.c * d.h + h) * d.w + w, h, w};
	}
	__device__ column of(i64 j) const {
		int window = d.r * d.s, c = (int)j / window, rest = (int)j % window, h = rest / (int)d.s * (int)d.dh, w = rest % (int)d.s * (int)d.dw;
		return column{(c * d.h + h) * d.w + w, h, w};
	}
	__device__ i64 out(i64 j) const { return to + j; }
};

// multiply computes one tile of the result over [from, to). The tile is rows by cols, and each of
// 256 threads has down by across of it. With along, neighbouring threads read neighbouring entries
// of the large factor; without it, neighbouring columns. Sums are computed in parts, so that
// rounding errors grow with the number of parts.
template <class T, int rows, int cols, int down, int across, int deep, bool along, class P>
static __device__ void multiply(const P &p, T *out, const T *a, const T *b, const T *bias, i64 row0, i64 col0, i64 from, i64 to) {
	enum { reads_a = (rows * deep + 255) / 256, reads_b = (cols * deep + 255) / 256, mine = along ? reads_b : 1, part_steps = 64 };
	__shared__ __align__(16) T sa[2][deep][rows + 4], sb[2][deep][cols + 4];
	__shared__ entry se[2][deep];
	const int t = threadIdx.x, x = t % (cols / across) * across, y = t / (cols / across) * down;
	column c[mine];
#pragma unroll
	for (int l = 0; l < mine; l++) {
		i64 j = col0 + (along ? (t + 256 * l) / deep : t % cols);
		c[l] = j < p.n ? p.of(j) : column{0, far, far};
	}
	T sum[down][across], part[down][across], ra[reads_a], rb[reads_b];
#pragma unroll
	for (int i = 0; i < down; i++)
#pragma unroll
		for (int j = 0; j < across; j++)
			sum[i][j] = part[i][j] = 0;
	auto find = [&](int side, i64 step) {
		i64 l = from + step * deep + t;
		if (t < deep)
			se[side][t] = l < to ? p.at(l) : entry{-1, 0, far, far};
	};
	auto read = [&](int side) {
#pragma unroll
		for (int l = 0; l < reads_a; l++) {
			int i = t + 256 * l;
			ra[l] = 0;
			if (i < rows * deep) {
				i64 at = se[side][i % deep].a, row = row0 + i / deep;
				if (at >= 0 && row < p.m)
					ra[l] = a[p.a_base + row * p.a_row + at];
			}
		}
#pragma unroll
		for (int l = 0; l < reads_b; l++) {
			int i = t + 256 * l;
			rb[l] = 0;
			if (i < cols * deep) {
				entry e = se[side][along ? i % deep : i / cols];
				const column &own = c[along ? l : 0];
				if ((unsigned)(e.h + own.h) < p.height && (unsigned)(e.w + own.w) < p.width)
					rb[l] = b[e.b + own.b];
			}
		}
	};
	auto keep = [&](int side) {
#pragma unroll
		for (int l = 0; l < reads_a; l++) {
			int i = t + 256 * l;
			if (i < rows * deep)
				sa[side][i % deep][i / deep] = ra[l];
		}
#pragma unroll
		for (int l = 0; l < reads_b; l++) {
			int i = t + 256 * l;
			if (i < cols * deep)
				sb[side][along ? i % deep : i / cols][along ? i / deep : i % cols] = rb[l];
		}
	};
	i64 steps = to > from ? (to - from + deep - 1) / deep : 0;
	find(0, 0);
	__syncthreads();
	read(0);
	keep(0);
	find(1, 1);
	__syncthreads();
	for (i64 step = 0; step < steps; step++) {
		int side = step & 1;
		if (step + 1 < steps)
			read(side ^ 1);
#pragma unroll 4
		for (int l = 0; l < deep; l++) {
			several<T, down> u = *(const several<T, down> *)&sa[side][l][y];
			several<T, across> v = *(const several<T, across> *)&sb[side][l][x];
#pragma unroll
			for (int i = 0; i < down; i++)
#pragma unroll
				for (int j = 0; j < across; j++)
					part[i][j] += u.v[i] * v.v[j];
		}
		if (step % part_steps == part_steps - 1 || step + 1 == steps)
#pragma unroll
			for (int i = 0; i < down; i++)
#pragma unroll
				for (int j = 0; j < across; j++) {
					sum[i][j] += part[i][j];
					part[i][j] = 0;
				}
		if (step + 1 < steps)
			keep(side ^ 1);
		find(side, step + 2);
		__syncthreads();
	}
#pragma unroll
	for (int j = 0; j < across; j++) {
		i64 at = col0 + x + j < p.n ? p.out(col0 + x + j) : -1;
		if (at < 0)
			continue;
#pragma unroll
		for (int i = 0; i < down; i++) {
			i64 row = row0 + y + i;
			if (row < p.m)
				out[at + row * p.out_row] = bias ? sum[i][j] + bias[p.g * p.m + row] : sum[i][j];
		}
	}
	__syncthreads();
}

// TILES iterates over the tiles of all groups and parts. Neighbouring blocks share the large
// factor.
#define TILES(m, n, parts, groups, rows, cols) \
	u64 high = ((m) + rows - 1) / rows, wide = ((n) + cols - 1) / cols; \
	for (u64 tile = blockIdx.x; tile < high * wide * (groups) * (parts); tile += gridDim.x)
#define ROW(rows) (i64)(tile % high * rows)
#define COLUMN(cols) (i64)(tile / high % wide * cols)
#define GROUP(groups) (i64)(tile / high / wide % (groups))
#define PART(groups) (i64)(tile / high / wide / (groups))

#define CONV(T, t, name, rows, cols, down, across, deep) \
	extern "C" __global__ void __launch_bounds__(256, 2) conv_##name##_##t(T *y, const T *x, const T *w, const T *bias, plan d) { \
		TILES(d.k, d.n * d.p * d.q, 1, d.groups, rows, cols) \
			multiply<T, rows, cols, down, across, deep, false>(forward(d, GROUP(d.groups)), y, w, x, bias, ROW(rows), COLUMN(cols), 0, d.c * d.r * d.s); \
	} \
	extern "C" __global__ void __launch_bounds__(256, 2) conv_input_grad_##name##_##t(T *dx, const T *dy, const T *w, const T *bias, plan d) { \
		TILES(d.c, d.n * ((d.h + d.sh - 1) / d.sh) * ((d.w + d.sw - 1) / d.sw), d.sh * d.sw, d.groups, rows, cols) { \
			i64 remainder = PART(d.groups); \
			backward p(d, GROUP(d.groups), (int)(remainder / d.sw), (int)(remainder % d.sw)); \
			multiply<T, rows, cols, down, across, deep, false>(p, dx, w, dy, bias, ROW(rows), COLUMN(cols), 0, p.depth); \
		} \
	}
#define WEIGHTS(T, t, name, rows, cols, down, across, deep) \
	extern "C" __global__ void __launch_bounds__(256, 2) conv_weight_grad_##name##_##t(T *dw, const T *dy, const T *x, u64 parts, i64 chunk, plan d) { \
		TILES(d.k, d.c * d.r * d.s, parts, d.groups, rows, cols) { \
			i64 part = PART(d.groups), from = part * chunk, all = d.n * d.p * d.q; \
			multiply<T, rows, cols, down, across, deep, true>(weights(d, GROUP(d.groups), part), dw, dy, x, (const T *)0, ROW(rows), COLUMN(cols), from, \
				from + chunk < all ? from + chunk : all); \
		} \
	}
CONV(float, f32, 32, 32, 128, 4, 4, 16)
CONV(float, f32, 64, 64, 64, 4, 4, 16)
CONV(float, f32, small, 32, 32, 2, 2, 16)
CONV(double, f64, 64, 64, 64, 4, 4, 8)
WEIGHTS(float, f32, 32, 32, 128, 4, 4, 16)
WEIGHTS(float, f32, 64, 64, 64, 4, 4, 16)
WEIGHTS(double, f64, 64, 64, 64, 4, 4, 8)

// add_parts adds the parts of a gradient of the weights. A block has a column of threads for each
// of blockDim.x weights. A thread has four loads in flight.
template <class T> static __device__ void add_parts(T *dw, const T *from, u64 n, u64 parts) {
	enum { loads = 4 };
	__shared__ double s[256];
	for (u64 first = blockIdx.x * (u64)blockDim.x; first < n; first += gridDim.x * (u64)blockDim.x) {
		u64 at = first + threadIdx.x;
		total<T> own;
		if (at < n)
			for (u64 p = threadIdx.y; p < parts; p += loads * blockDim.y) {
				T v[loads];
#pragma unroll
				for (int i = 0; i < loads; i++)
					v[i] = p + i * blockDim.y < parts ? from[(p + i * blockDim.y) * n + at] : 0;
#pragma unroll
				for (int i = 0; i < loads; i++)
					own.add(v[i]);
			}
		s[threadIdx.y * blockDim.x + threadIdx.x] = own.value();
		__syncthreads();
		if (threadIdx.y == 0 && at < n) {
			for (unsigned y = 1; y < blockDim.y; y++)
				own.add(s[y * blockDim.x + threadIdx.x]);
			dw[at] = (T)own.value();
		}
		__syncthreads();
	}
}
#define PARTS(T, t) \
	extern "C" __global__ void __launch_bounds__(256) conv_parts_##t(T *dw, const T *from, u64 n, u64 parts) { add_parts(dw, from, n, parts); }
FLOATS(PARTS)

// With few channels in a group, as in a depthwise convolution, most of a tile would be empty. So a
// thread computes one element.
#define DIRECT(T, t) \
	extern "C" __global__ void conv_direct_##t(T *y, const T *x, const T *w, const T *bias, plan d) { \
		EACH(o, (u64)(d.n * d.groups * d.k * d.p * d.q)) { \
			u64 row = divide(o, d.q), all = divide(row, d.p), image = divide(all, d.k); \
			i64 q = o - row * d.q, p = row - all * d.p, k = all % (d.groups * d.k), h0 = p * d.sh - d.ph, w0 = q * d.sw - d.pw; \
			const T *in = x + image * d.c * d.h * d.w, *own = w + k * d.c * d.r * d.s; \
			T sum = 0; \
			for (i64 c = 0; c < d.c; c++) \
				for (i64 r = 0; r < d.r; r++) \
					for (i64 s = 0; s < d.s; s++) { \
						i64 i = h0 + r * d.dh, j = w0 + s * d.dw; \
						bool inside = i >= 0 && i < d.h && j >= 0 && j < d.w; \
						sum += own[(c * d.r + r) * d.s + s] * (inside ? in[(c * d.h + i) * d.w + j] : (T)0); \
					} \
			y[o] = bias ? sum + bias[k] : sum; \
		} \
	} \
	extern "C" __global__ void conv_input_grad_direct_##t(T *dx, const T *dy, const T *w, const T *bias, plan d) { \
		EACH(o, (u64)(d.n * d.groups * d.c * d.h * d.w)) { \
			u64 row = divide(o, d.w), all = divide(row, d.h), image = divide(all, d.c); \
			i64 v = o - row * d.w + d.pw, u = row - all * d.h + d.ph, c = all % d.c, g = image % d.groups; \
			const T *in = dy + image * d.k * d.p * d.q, *own = w + (g * d.k * d.c + c) * d.r * d.s; \
			T sum = 0; \
			for (i64 k = 0; k < d.k; k++) \
				for (i64 r = 0; r < d.r; r++) { \
					i64 i = u - r * d.dh, p = i / d.sh; \
					if (i < 0 || p >= d.p || p * d.sh != i) \
						continue; \
					for (i64 s = 0; s < d.s; s++) { \
						i64 j = v - s * d.dw, q = j / d.sw; \
						if (j >= 0 && q < d.q && q * d.sw == j) \
							sum += own[(k * d.c * d.r + r) * d.s + s] * in[(k * d.p + p) * d.q + q]; \
					} \
				} \
			dx[o] = bias ? sum + bias[g * d.c + c] : sum; \
		} \
	} \
	extern "C" __global__ void conv_weight_grad_direct_##t(T *dw, const T *dy, const T *x, plan d) { \
		__shared__ double sums[33]; \
		u64 inner = d.c * d.r * d.s, places = d.p * d.q, n = d.groups * d.k * inner; \
		for (u64 o = blockIdx.x; o < n; o += gridDim.x) { \
			i64 k = o / inner, rest = o % inner, c = rest / (d.r * d.s), r = rest / d.s % d.r, s = rest % d.s, g = k / d.k; \
			total<T> own; \
			for (u64 l = threadIdx.x; l < d.n * places; l += blockDim.x) { \
				u64 image = divide(l, places), place = l - image * places, p = divide(place, d.q); \
				i64 i = (i64)(p * d.sh + r * d.dh) - d.ph, j = (i64)((place - p * d.q) * d.sw + s * d.dw) - d.pw; \
				bool inside = i >= 0 && i < d.h && j >= 0 && j < d.w; \
				T v = inside ? x[(((image * d.groups + g) * d.c + c) * d.h + i) * d.w + j] : (T)0; \
				own.add((double)dy[(image * d.groups * d.k + k) * places + place] * (double)v); \
			} \
			double v = block_sum(own.value(), sums); \
			if (threadIdx.x == 0) \
				dw[o] = (T)v; \
			__syncthreads(); \
		} \
	}
FLOATS(DIRECT)
