// Rows and elements selected by index, and their gradients. A gradient adds everything that was
// taken from one row. For that, the positions in the index are sorted by row, then by position:
// first runs in shared memory, then merges in which each element finds its own position. The keys
// are distinct, so the order, and with it every sum, is the same in every run.

#include "sort.h"

// fault is plan.Fault.
struct fault {
	int code, row, got, limit;
};

static __device__ int narrow(i64 v) { return (int)(v < -2147483648ll ? -2147483648ll : v > 2147483647ll ? 2147483647ll : v); }

// note records one fault of a launch, unless one was recorded before. Which thread's fault is
// recorded is undefined.
static __device__ void note(fault *f, u64 place, i64 got, u64 limit) {
	if (atomicCAS(&f->code, 0, 2) == 0) {
		f->row = narrow((i64)place);
		f->got = narrow(got);
		f->limit = narrow((i64)limit);
	}
}

static __device__ i64 index_at(const void *index, u64 wide, u64 i) {
	return wide ? ((const i64 *)index)[i] : (i64)((const int *)index)[i];
}

#define TAKE(T, name) \
	extern "C" __global__ void take_##name(T *dst, const T *x, const void *index, u64 wide, T bad, fault *f, \
		u64 outer, u64 rows, u64 count, u64 inner) { \
		EACH(i, outer * count * inner) { \
			u64 r = divide(i, inner), o = divide(r, count), j = r - o * count; \
			i64 at = index_at(index, wide, j); \
			bool there = at >= 0 && at < (i64)rows; \
			dst[i] = there ? x[(o * rows + (u64)at) * inner + i - r * inner] : bad; \
			if (!there && i == j * inner) \
				note(f, j, at, rows); \
		} \
	}
TAKE(unsigned char, 1)
TAKE(unsigned short, 2)
TAKE(unsigned int, 4)
TAKE(u64, 8)

static const u64 no_row = 0xffffffffull;

enum { ahead = 16 };

// SORT_KEYS is the kernel in which each block sorts a run of keys, row << 32 | position. key is
// that of element j.
#define SORT_KEYS(name, key, ...) \
	extern "C" __global__ void name(u64 *order, const void *index, u64 wide, u64 n, __VA_ARGS__) { \
		__shared__ u64 keys[run]; \
		for (u64 from = blockIdx.x * (u64)run; from < n; from += gridDim.x * (u64)run) { \
			int keep = kept_of_run(from, n); \
			for (int k = threadIdx.x; k < keep; k += blockDim.x) { \
				u64 j = from + k; \
				keys[k] = j < n ? (key) : ~0ull; \
			} \
			sort_run(keys, keep); \
			for (int k = threadIdx.x; k < keep; k += blockDim.x) \
				if (from + k < n) \
					order[from + k] = keys[k]; \
			__syncthreads(); \
		} \
	}

static __device__ u64 row_key(i64 at, u64 j, u64 rows, i64 skip) {
	return (at >= 0 && at < (i64)rows && at != skip ? (u64)at : no_row) << 32 | j;
}
SORT_KEYS(sort_index, row_key(index_at(index, wide, j), j, rows, skip), u64 rows, i64 skip)

// merge_index merges neighbouring runs of the given width.
extern "C" __global__ void merge_index(u64 *dst, const u64 *src, u64 n, u64 width) { EACH(i, n) merge_run(dst, src, i, n, width); }

// take_grad: a block of 256 columns for each position that is the first one of its row. A thread
// adds its column in order, and reads some positions ahead of the sum.
#define TAKE_GRAD(T, t) \
	extern "C" __global__ void take_grad_##t(T *dst, const T *dy, const u64 *order, u64 outer, u64 rows, u64 count, u64 inner, u64 mean) { \
		for (u64 p = blockIdx.x; p < count; p += gridDim.x) { \
			u64 row = order[p] >> 32; \
			if (row == no_row) \
				break; \
			if (p > 0 && order[p - 1] >> 32 == row) \
				continue; \
			for (u64 c = blockIdx.y * 256ull + threadIdx.y * 32 + threadIdx.x; c < outer * inner; c += gridDim.y * 256ull) { \
				u64 o = divide(c, inner), i = c - o * inner, n = 0; \
				const T *from = dy + o * count * inner + i; \
				total<T> sum; \
				bool more = true; \
				for (u64 q = p; more; q += ahead) { \
					T v[ahead]; \
					int found = 0; \
					for (int k = 0; k < ahead; k++) { \
						u64 key = q + k < count ? order[q + k] : ~0ull; \
						more = key >> 32 == row; \
						v[k] = more ? from[(key & no_row) * inner] : (T)0; \
						found += more; \
					} \
					for (int k = 0; k < ahead; k++) \
						if (k < found) \
							sum.add((double)v[k]); \
					n += found; \
				} \
				dst[(o * rows + row) * inner + i] = (T)(mean ? sum.value() / (double)n : sum.value()); \
			} \
		} \
	}
FLOATS(TAKE_GRAD)
TAKE_GRAD(bfloat16, bf16)

enum { scanned = 2048 };

// scan_grad is take_grad without a sorted index, for few positions. A block reads all of them, and
// lists those of its row in order. It sets every row, or adds to it, rounded like a sum of two
// tensors.
#define SCAN_GRAD(T, t) \
	extern "C" __global__ void scan_grad_##t(T *dst, const T *dy, const void *index, u64 wide, \
		u64 outer, u64 rows, u64 count, u64 inner, i64 skip, u64 mean, u64 onto) { \
		__shared__ unsigned short places[scanned]; \
		__shared__ int found[8]; \
		for (u64 row = blockIdx.x; row < rows; row += gridDim.x) { \
			int n = 0; \
			for (u64 from = 0; (i64)row != skip && from < count; from += 256) { \
				u64 j = from + threadIdx.y * 32 + threadIdx.x; \
				bool here = j < count && index_at(index, wide, j) == (i64)row; \
				unsigned lanes = __ballot_sync(~0u, here); \
				if (threadIdx.x == 0) \
					found[threadIdx.y] = __popc(lanes); \
				__syncthreads(); \
				int at = n + __popc(lanes & ((1u << threadIdx.x) - 1)); \
				for (int y = 0; y < 8; y++) { \
					at += y < threadIdx.y ? found[y] : 0; \
					n += found[y]; \
				} \
				if (here) \
					places[at] = (unsigned short)j; \
				__syncthreads(); \
			} \
			for (u64 c = blockIdx.y * 256ull + threadIdx.y * 32 + threadIdx.x; c < outer * inner; c += gridDim.y * 256ull) { \
				u64 o = divide(c, inner), i = c - o * inner; \
				const T *from = dy + o * count * inner + i; \
				total<T> sum; \
				_Pragma("unroll 8") for (int k = 0; k < n; k++) \
					sum.add((double)from[places[k] * inner]); \
				T d = (T)(mean && n ? sum.value() / n : sum.value()); \
				T *at = &dst[(o * rows + row) * inner + i]; \
				*at = onto ? (T)(*at + d) : d; \
			} \
		} \
	}
FLOATS(SCAN_GRAD)
SCAN_GRAD(bfloat16, bf16)

// columns is plan.Gather: the columns of the index, their strides in the index and in x, and the
// layout of each column in both.
struct columns {
	i64 count, length, index_stride, rows, x_stride, n, dims[max_dims], index[max_dims], x[max_dims];
};

// selected is the element of x that element i of the index selects. Neighbours of i are neighbours
// in the index.
struct selected {
	u64 column, along, place;
	i64 at;
	__device__ selected(const void *index, u64 wide, u64 i, const columns &w) {
		u64 length = (u64)w.length, count = (u64)w.count, c = w.index_stride == 1 ? divide(i, length) : i % count;
		along = w.index_stride == 1 ? i - c * length : divide(i, count);
		place = offset(c, w.n, w.dims, w.index) + along * w.index_stride;
		column = offset(c, w.n, w.dims, w.x);
		at = index_at(index, wide, place);
	}
	__device__ bool there(const columns &w) const { return at >= 0 && at < w.rows; }
	__device__ u64 element(const columns &w) const { return column + (u64)at * w.x_stride; }
};

#define GATHER(T, name) \
	extern "C" __global__ void gather_##name(T *dst, const T *x, const void *index, u64 wide, T bad, fault *f, columns w) { \
		EACH(i, (u64)(w.count * w.length)) { \
			selected s(index, wide, i, w); \
			if (s.there(w)) { \
				dst[s.place] = x[s.element(w)]; \
			} else { \
				dst[s.place] = bad; \
				note(f, s.place, s.at, w.rows); \
			} \
		} \
	}
GATHER(unsigned char, 1)
GATHER(unsigned short, 2)
GATHER(unsigned int, 4)
GATHER(u64, 8)

// gathered_key has the element of x that element i of the index selects as its row.
static __device__ u64 gathered_key(const void *index, u64 wide, u64 i, fault *f, const columns &w) {
	selected s(index, wide, i, w);
	if (!s.there(w))
		note(f, s.place, s.at, w.rows);
	return (s.there(w) ? s.element(w) : no_row) << 32 | s.place;
}
SORT_KEYS(sort_gathered, gathered_key(index, wide, j, f, w), fault *f, columns w)

// gather_grad: one thread for each position that is the first one of its element. It adds in order,
// and reads some positions ahead of the sum.
#define GATHER_GRAD(T, t) \
	extern "C" __global__ void gather_grad_##t(T *dst, const T *dy, const u64 *order, u64 n) { \
		EACH(p, n) { \
			u64 row = order[p] >> 32; \
			if (row == no_row || (p > 0 && order[p - 1] >> 32 == row)) \
				continue; \
			T sum = dst[row]; \
			bool more = true; \
			for (u64 q = p; more; q += ahead) { \
				T v[ahead]; \
				int found = 0; \
				for (int k = 0; k < ahead; k++) { \
					u64 key = q + k < n ? order[q + k] : ~0ull; \
					more = key >> 32 == row; \
					v[k] = more ? dy[key & no_row] : (T)0; \
					found += more; \
				} \
				for (int k = 0; k < ahead; k++) \
					sum = k < found ? sum + v[k] : sum; \
			} \
			dst[row] = sum; \
		} \
	}
FLOATS(GATHER_GRAD)

// mark_last sets last to 1 + the position in its column of the last index that selects an element.
// It must be 0 before.
extern "C" __global__ void mark_last(unsigned *last, const void *index, u64 wide, columns w) {
	EACH(i, (u64)(w.count * w.length)) {
		selected s(index, wide, i, w);
		if (s.there(w))
			atomicMax(&last[s.element(w)], (unsigned)s.along + 1);
	}
}

// scatter sets the elements that are selected. If last is not null, only the index that it names
// sets an element.
#define SCATTER(T, name) \
	extern "C" __global__ void scatter_##name(T *dst, const T *src, T value, const void *index, u64 wide, fault *f, const unsigned *last, columns w) { \
		EACH(i, (u64)(w.count * w.length)) { \
			selected s(index, wide, i, w); \
			if (!s.there(w)) \
				note(f, s.place, s.at, w.rows); \
			else if (!last || last[s.element(w)] == (unsigned)s.along + 1) \
				dst[s.element(w)] = src ? src[s.place] : value; \
		} \
	}
SCATTER(unsigned char, 1)
SCATTER(unsigned short, 2)
SCATTER(unsigned int, 4)
SCATTER(u64, 8)
