// Broadcasting of the elements of arrays with different shapes.

#pragma once

#include "kernels.h"

// meeting is plan.Meeting for that many arrays, or plan.Broadcast for two.
template <int arrays> struct meeting {
	i64 n, dims[max_dims], strides[arrays][max_dims];
	__device__ u64 at(int k, u64 i) const { return offset(i, n, dims, strides[k]); }
};
