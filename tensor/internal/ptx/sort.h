// The sort of a run of keys by a block.

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
static __device__ void sort_run(u64 *keys, int keep) {
	__syncthreads();
	for (int size = 2; size <= keep; size *= 2)
		for (int step = size / 2; step > 0; step /= 2) {
			for (int k = threadIdx.x; k < keep / 2; k += blockDim.x) {
				int a = k / step * 2 * step + k % step, b = a + step;
				bool up = (a & size) == 0;
				u64 x = keys[a], y = keys[b];
				if ((x > y) == up) {
					keys[a] = y;
					keys[b] = x;
				}
			}
			__syncthreads();
		}
}
