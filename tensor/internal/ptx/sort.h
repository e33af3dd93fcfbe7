// Sorts of distinct keys K: of a run by a block, and merges of runs.

#pragma once

#include "kernels.h"

enum { run = 2048 };

// kept_of_run is the number of keys in the network of the run that begins at key from of n. The
// last run's network is no longer than its keys need.
static __device__ int kept_of_run(u64 from, u64 n) {
	int keep = run;
	while (keep > 1 && from + keep / 2 >= n)
		keep /= 2;
	return keep;
}

// sort_run sorts keys in shared memory with a bitonic network, with half as many threads as keys.
// Steps of up to 32 exchange the keys of one warp.
template <class K> static __device__ void sort_run(K *keys, int keep) {
	__syncthreads();
	for (int size = 2; size <= keep; size *= 2)
		for (int step = size / 2; step > 0; step /= 2) {
			for (int k = threadIdx.x; k < keep / 2; k += blockDim.x) {
				int a = 2 * k - (k & (step - 1)), b = a + step;
				bool up = (a & size) == 0;
				K x = keys[a], y = keys[b];
				if ((y < x) == up) {
					keys[a] = y;
					keys[b] = x;
				}
			}
			if (max(step, step > 1 ? step / 2 : size) > 32)
				__syncthreads();
			else
				__syncwarp();
		}
	__syncthreads();
}

// merge_run merges key j of a row into dst, where the row's neighbouring runs of width, a power of
// two, are merged. The position of a key is its position in its own run plus the number of smaller
// keys in the other.
template <class K> static __device__ void merge_run(K *dst, const K *row, u64 j, u64 cols, u64 width) {
	u64 start = j & ~(2 * width - 1), middle = min(start + width, cols), end = min(middle + width, cols);
	K key = row[j];
	u64 lo = j < middle ? middle : start, hi = j < middle ? end : middle, first = lo;
	while (lo < hi) {
		u64 half = lo + (hi - lo) / 2;
		if (row[half] < key)
			lo = half + 1;
		else
			hi = half;
	}
	dst[(j < middle ? j : start + (j - middle)) + (lo - first)] = key;
}
