// Copies from memory to shared memory that a thread does not wait for, on GPUs of compute
// capability 8.0 and up, and shared memory whose size a launch names.

#pragma once

#ifdef __CUDACC__
extern __shared__ float4 dynamic_shared[];

// copy_four copies the first n of four floats, and sets the others to 0. Both addresses are
// multiples of 16 bytes.
static __device__ void copy_four(float *to, const float *from, int n) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(4 * n) : "memory");
}

// copy_one copies n floats, one or none, which leaves 0.
static __device__ void copy_one(float *to, const float *from, int n) {
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(4 * n) : "memory");
}

// copy_double copies one double if it is there, and sets 0 if not.
static __device__ void copy_double(double *to, const double *from, bool there) {
	asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" : : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 8 : 0) : "memory");
}

// copy_eight copies eight bfloat16 if they are there, and sets to 0 if not. Both addresses are
// multiples of 16 bytes.
static __device__ void copy_eight(void *to, const void *from, bool there) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// copies_end ends a group of a thread's copies; copies_but waits for all of its groups, except the
// last n.
static __device__ void copies_end() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int n> static __device__ void copies_but() { asm volatile("cp.async.wait_group %0;" : : "n"(n) : "memory"); }

// power_of_two is 2 to the power of x; 0 where that is less than the least normal number.
static __device__ float power_of_two(float x) {
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
#endif
