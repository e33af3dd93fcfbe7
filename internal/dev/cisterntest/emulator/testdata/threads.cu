// Kernels whose results say whether threads meet as they should.

// warp_sum: every thread of a block of any size has the sum of its warp's numbers.
extern "C" __global__ void warp_sum(double *dst, const double *x, unsigned long long n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	double v = x[i];
	for (int d = 16; d > 0; d /= 2)
		v += __shfl_xor_sync(~0u, v, d);
	dst[i] = v;
}

// reversed turns the numbers of each block round, twice through shared memory.
extern "C" __global__ void reversed(double *dst, const double *x, unsigned long long n) {
	__shared__ double s[1024];
	int t = threadIdx.x, at = blockIdx.x * blockDim.x;
	for (int times = 0; times < 3; times++) {
		s[t] = times == 0 ? x[at + t] : dst[at + t];
		__syncthreads();
		dst[at + t] = s[blockDim.x - 1 - t];
		__syncthreads();
	}
}

// vote: how many threads of the warp have a positive number, told by each; __ballot_sync and __shfl_sync.
extern "C" __global__ void vote(double *dst, const double *x, unsigned long long n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	unsigned all = __ballot_sync(~0u, x[i] > 0);
	dst[i] = __shfl_sync(~0u, __popc(all), 31) + (__any_sync(~0u, x[i] > 0) ? 100 : 0) + (__all_sync(~0u, x[i] > 0) ? 1000 : 0);
}

// apart: half of the threads wait for the block, half for their warp. On a GPU it may never end.
extern "C" __global__ void apart(double *dst, const double *x, unsigned long long n) {
	if (threadIdx.x % 2)
		__syncthreads();
	else
		__syncwarp();
	dst[threadIdx.x] = x[threadIdx.x];
}
