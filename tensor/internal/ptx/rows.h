// Shared by the kernels of rows.

#pragma once

#include "kernels.h"

// rows are the vectors along one dimension of an array: cols elements each, inner elements apart.
struct rows {
	u64 n, cols, inner;
	__device__ u64 start(u64 i) const { return i / inner * (cols * inner) + i % inner; }
};

#define ROWS(i, r) for (u64 i = blockIdx.x; i < (r).n; i += gridDim.x)
#define COLS(j, r) for (u64 j = threadIdx.x; j < (r).cols; j += blockDim.x)

// fault is plan.Fault.
struct fault {
	int code, row, got, limit;
};

// entropy is plan.Entropy.
struct entropy {
	rows r;
	i64 ignore;
	double smoothing;
	i64 mean;
};

// share is a thread's part of a row: elements first, first + step, …. The threads of a warp share
// the row if narrow is set, otherwise those of the block. s has 33 slots.
template <bool narrow> struct share {
	double *s;
	static __device__ u64 at_once() { return narrow ? blockDim.x / 32 : 1; } // rows of a block
	__device__ u64 first() const { return narrow ? threadIdx.x % 32 : threadIdx.x; }
	__device__ u64 step() const { return narrow ? 32 : blockDim.x; }
	__device__ u64 row() const { return blockIdx.x * at_once() + (narrow ? threadIdx.x / 32 : 0); }
	__device__ u64 rows() const { return gridDim.x * at_once(); }
	__device__ double sum(double v) const { return narrow ? warp_sum(v) : block_sum(v, s); }
	__device__ double max(double v) const { return narrow ? warp_max(v) : block_max(v, s); }
};

#define SHARED_ROWS(i, o, r) for (u64 i = (o).row(); i < (r).n; i += (o).rows())

static __device__ bool no_class(i64 label, const entropy &e) { return label != e.ignore && (label < 0 || label >= (i64)e.r.cols); }

// row_sum is the greatest element of a row, and the sum of exp(v - greatest).
struct row_sum {
	double top, sum;
};

// counts_for is the weight of a row's label in the divisor of the losses.
template <class T> static __device__ double counts_for(i64 label, const T *weights, const entropy &e) {
	return label == e.ignore ? 0 : !weights ? 1 : no_class(label, e) ? 0 : (double)weights[label];
}

// label_weights is the divisor of the losses, for each thread of a block. s has 33 slots.
template <class T, class L> static __device__ double label_weights(const L *labels, const T *weights, const entropy &e, double *s) {
	if (!e.mean)
		return 1;
	total<T> own;
	for (u64 i = threadIdx.x; i < e.r.n; i += blockDim.x)
		own.add(counts_for(labels[i], weights, e));
	return block_sum(own.value(), s);
}

// spread_of is smoothing's share of all classes together, for each thread of a block.
template <class T> static __device__ double spread_of(const T *weights, const entropy &e, double *s) {
	if (!weights || e.smoothing == 0)
		return e.smoothing;
	total<T> own;
	COLS(j, e.r) own.add(weights[j]);
	return e.smoothing / (double)e.r.cols * block_sum(own.value(), s);
}

// CROSS_ENTROPY is the kernel of a loss. A row has one of the 8 warps of a block, or if narrow is
// not set a block, which does not compute a gradient. With each, loss gets all rows' losses. Each
// block writes the sum of its losses, the sum of their divisors, and its first row without the
// label of a class, to part. The last block adds them. grad, unless it is null, gets the gradient
// of the logits for a gradient of the loss of 1, and sums the sum of each row. W is the type of
// the loss; surprise and slopes are those for T.
#define CROSS_ENTROPY(name, T, t, W, L, l, narrow) \
	extern "C" __global__ void __launch_bounds__(256, sizeof(T) == 2 || !narrow && sizeof(T) == 4 ? 4 : 1) name##_##l##_##t(W *loss, T *grad, row_sum *sums, const T *logits, const L *labels, const W *weights, \
		fault *f, double *part, unsigned *ticket, i64 each, entropy e) { \
		__shared__ double s[33]; \
		__shared__ u64 bad; \
		share<narrow> o = {s}; \
		total<W> own, per; \
		u64 wrong = ~0ull; \
		double scale = narrow && grad ? 1 / label_weights(labels, weights, e, s) : 0, spread = narrow && grad ? spread_of(weights, e, s) : 0; \
		SHARED_ROWS(i, o, e.r) { \
			row_sum of = {0, 1}; \
			double v = surprise(logits, labels, weights, i, o, e, &of); \
			if (narrow && grad) \
				slopes(grad + e.r.start(i), logits + e.r.start(i), labels[i], weights, scale, spread, of, o, e); \
			if (o.first()) \
				continue; \
			if (sums) \
				sums[i] = of; \
			if (each) \
				loss[i] = (W)v; \
			own.add(v); \
			per.add(counts_for(labels[i], weights, e)); \
			if (wrong == ~0ull && no_class(labels[i], e)) \
				wrong = i; \
		} \
		double sum = block_sum(own.value(), s), count = block_sum(per.value(), s); \
		bad = ~0ull; \
		__syncthreads(); \
		if (wrong != ~0ull) \
			atomicMin(&bad, wrong); \
		__syncthreads(); \
		if (gridDim.x > 1) { \
			if (threadIdx.x == 0) { \
				part[3 * blockIdx.x] = sum; \
				part[3 * blockIdx.x + 1] = count; \
				((u64 *)part)[3 * blockIdx.x + 2] = bad; \
			} \
			if (!comes_last(ticket, gridDim.x)) \
				return; \
			total<W> all_sums, all_counts; \
			for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) { \
				all_sums.add(part[3 * i]); \
				all_counts.add(part[3 * i + 1]); \
				if (((u64 *)part)[3 * i + 2] != ~0ull) \
					atomicMin(&bad, ((u64 *)part)[3 * i + 2]); \
			} \
			sum = block_sum(all_sums.value(), s); \
			count = block_sum(all_counts.value(), s); \
			__syncthreads(); \
		} \
		if (threadIdx.x) \
			return; \
		if (!each) \
			*loss = (W)(sum / (e.mean ? count : 1)); \
		if (bad != ~0ull && f->code == 0) { \
			i64 got = labels[bad], most = 0x7fffffff; \
			f->row = (int)min((i64)bad, most); \
			f->got = (int)max(min(got, most), -most - 1); \
			f->limit = (int)min((i64)e.r.cols, most); \
			f->code = 1; \
		} \
	}
