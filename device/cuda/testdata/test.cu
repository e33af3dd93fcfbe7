// Kernels of the tests and benchmarks of this package.

extern "C" __global__ void fill(unsigned char *p, unsigned long long n, unsigned char value) {
	for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (unsigned long long)blockDim.x)
		p[i] = value;
}

extern "C" __global__ void addOne(unsigned char *p, unsigned long long n) {
	for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (unsigned long long)blockDim.x)
		p[i]++;
}

// spin waits until *go is not 0.
extern "C" __global__ void spin(const volatile unsigned *go) {
	while (*go == 0)
		__nanosleep(1000);
}

// fault writes to an address without memory.
extern "C" __global__ void fault(unsigned char *p) { p[threadIdx.x] = 1; }

extern "C" __global__ void nothing() {}
