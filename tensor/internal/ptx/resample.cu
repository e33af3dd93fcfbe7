// Planes that are sampled from others, and the gradient. A thread computes an element and gathers
// its terms.

#include "kernels.h"

// axis is plan.Axis, whose tables are computed here.
struct axis {
	i64 sampling, in, out;
	double step, shift;
};

// axes are the rows and the columns of a plane.
struct axes {
	axis rows, cols;
};

// The ways of sampling, in the order of plan.Sampling.
enum { NEAREST, LINEAR, REFLECT, REPLICATE };

static __device__ i64 clamp(i64 i, i64 from, i64 to) { return i < from ? from : i > to ? to : i; }

// tap is the two neighbours of which an element is made. next is the share of the second.
struct tap {
	i64 at;
	double next;
	__device__ tap(const axis &a, i64 o) : next(0) {
		i64 last = a.in - 1;
		if (a.sampling == NEAREST) {
			at = clamp((i64)__fmul_rn((float)o, (float)a.step), 0, last);
		} else if (a.sampling == LINEAR) {
			// Unfused, as on the host.
			double place = __dadd_rn(__dmul_rn((double)o, a.step), a.shift);
			place = place > 0 ? place : 0;
			at = place < (double)last ? (i64)place : last;
			next = at < last ? place - (double)at : 0;
		} else if (a.sampling == REPLICATE) {
			at = clamp(o + (i64)a.shift, 0, last);
		} else {
			i64 i = o + (i64)a.shift;
			i = i < 0 ? -i : i;
			at = i > last ? 2 * last - i : i;
		}
	}
	// share is the share of element i.
	__device__ double share(i64 i) const { return i == at ? 1 - next : i == at + 1 ? next : 0; }
};

// readers is the range of elements of a result that may use element i.
struct readers {
	i64 from, to;
	__device__ readers(const axis &a, i64 i) {
		i64 last = a.in - 1, here = i - (i64)a.shift;
		bool first = i == 0, final = i == last;
		if (a.sampling <= LINEAR) {
			i64 spare = 1 + (a.out >> 22); // for the error of NEAREST's float
			bool all = !(a.step > 0);
			from = first || all ? 0 : (i64)floor(((double)(i - a.sampling) - a.shift) / a.step) - spare;
			to = final || all ? a.out : (i64)ceil(((double)(i + 1) - a.shift) / a.step) + spare;
		} else if (a.sampling == REPLICATE) {
			from = first ? 0 : here;
			to = final ? a.out : here + 1;
		} else {
			i64 left = here - 2 * i, right = here + 2 * (last - i);
			from = left >= 0 ? left : here;
			to = right < a.out ? right + 1 : here + 1;
		}
		from = clamp(from, 0, a.out);
		to = clamp(to, 0, a.out);
	}
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

// mix is the weighted sum of a row's two neighbours.
template <class T> static __device__ typename sums<T>::type mix(const T *row, const tap &t) {
	typedef typename sums<T>::type S;
	S v = (S)row[t.at];
	return t.next == 0 ? v : (S)(1 - t.next) * v + (S)t.next * (S)row[t.at + 1];
}

#define RESAMPLE(T, t) \
	extern "C" __global__ void resample_##t(T *y, const T *x, u64 n, axes a) { \
		EACH(o, n) { \
			place to(o, a.rows.out, a.cols.out); \
			tap high(a.rows, to.i), wide(a.cols, to.j); \
			const T *row = x + (to.plane * a.rows.in + high.at) * a.cols.in; \
			sums<T>::type v = mix(row, wide); \
			if (high.next != 0) \
				v = (sums<T>::type)(1 - high.next) * v + (sums<T>::type)high.next * mix(row + a.cols.in, wide); \
			y[o] = (T)v; \
		} \
	} \
	extern "C" __global__ void resample_grad_##t(T *dx, const T *dy, u64 n, axes a) { \
		EACH(o, n) { \
			place to(o, a.rows.in, a.cols.in); \
			readers down(a.rows, to.i), across(a.cols, to.j); \
			double sum = 0; \
			for (i64 p = down.from; p < down.to; p++) { \
				double high = tap(a.rows, p).share(to.i); \
				if (high == 0) \
					continue; \
				const T *row = dy + (to.plane * a.rows.out + p) * a.cols.out; \
				for (i64 q = across.from; q < across.to; q++) { \
					double wide = tap(a.cols, q).share(to.j); \
					if (wide != 0) \
						sum += high * wide * (double)row[q]; \
				} \
			} \
			dx[o] = (T)(sums<T>::type)sum; \
		} \
	}
FLOATS(RESAMPLE)
RESAMPLE(bfloat16, bf16)
