// Kernels of the tests that show on a GPU what RecordStream is for.

// spinCopy waits until *go is not 0, and only then copies n bytes.
extern "C" __global__ void spinCopy(const volatile unsigned *go, const unsigned char *from, unsigned char *to, unsigned long long n) {
	if (threadIdx.x == 0)
		while (*go == 0)
			__nanosleep(1000);
	__syncthreads();
	for (unsigned long long i = threadIdx.x; i < n; i += blockDim.x)
		to[i] = from[i];
}

// spin waits until *go is not 0.
extern "C" __global__ void spin(const volatile unsigned *go) {
	while (*go == 0)
		__nanosleep(1000);
}

// add adds v to each of n bytes.
extern "C" __global__ void add(unsigned char *p, unsigned long long n, unsigned char v) {
	for (unsigned long long i = threadIdx.x; i < n; i += blockDim.x)
		p[i] += v;
}
