// Asynchronous copies from memory to shared memory, on GPUs of compute capability 8.0 and up, and
// shared memory with a size that the launch sets.

#pragma once

#ifdef __CUDACC__
extern __shared__ float4 dynamic_shared[];

// copy_four copies the first n of four floats, and sets the others to 0. Both addresses are
// multiples of 16 bytes.
static __device__ void copy_four(float *to, const float *from, int n) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(4 * n) : "memory");
}

// copy_one copies n floats, which is 0 or 1, and sets 0 for none.
static __device__ void copy_one(float *to, const float *from, int n) {
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(4 * n) : "memory");
}

// copy_double copies one double if there is set, otherwise it sets 0.
static __device__ void copy_double(double *to, const double *from, bool there) {
	asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" : : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 8 : 0) : "memory");
}

// copy_eight copies eight bfloat16 if there is set, otherwise it sets them to 0. Both addresses are
// multiples of 16 bytes.
static __device__ void copy_eight(void *to, const void *from, bool there) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// copies_end ends a group of a thread's copies. copies_but waits for all of its groups except the
// last n.
static __device__ void copies_end() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int n> static __device__ void copies_but() { asm volatile("cp.async.wait_group %0;" : : "n"(n) : "memory"); }

// power_of_two is 2 to the power of x, or 0 if that is less than the least normal number.
static __device__ float power_of_two(float x) {
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
#endif
