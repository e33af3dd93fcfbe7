// Shared by the kernels of attention.

#pragma once

#include "kernels.h"

enum { no_mask = 0, float_mask = 1 };

// attention is plan.Attention: strides of the batch, and of rows, in elements.
struct attention {
	i64 n, dims[max_dims], q[max_dims], k[max_dims], v[max_dims], o[max_dims], m[max_dims], dq[max_dims], dk[max_dims], dv[max_dims];
	i64 qrow, krow, vrow, orow, mrow, dqrow, dkrow, dvrow;
	i64 batch, l, s, e, w, masking, mcol, causal; // w: columns of the values
	double scale;
};

// summed is the part of a query's softmax that the gradient needs: the greatest score, and 1 over
// the sum of exponentials relative to it.
struct summed {
	double top, share;
	__device__ double weight(double score) const { return exp(score - top) * share; }
};

// seen is the greatest score, or 0 if no key was seen.
static __device__ double seen(double top) { return top == -INFINITY ? 0 : top; }
