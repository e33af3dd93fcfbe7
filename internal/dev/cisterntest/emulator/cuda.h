// CUDA C's functions for kernels, for a C++ compiler and an ordinary processor. A block's threads
// are fibers of one system thread. They take turns at __syncthreads and at the functions of a warp,
// where all must arrive before any continues. Blocks run one after the other. Behaviour that a GPU
// leaves undefined, such as threads that wait at different places, is an error here.

#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __constant__ static const
#define __shared__ static thread_local

struct dim3 {
	unsigned x, y, z;
};

#define EMULATOR_VECTORS(T, name) \
	struct name##2 { T x, y; }; \
	struct name##4 { T x, y, z, w; }; \
	static inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
	static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATOR_VECTORS(unsigned, uint)
EMULATOR_VECTORS(int, int)
EMULATOR_VECTORS(float, float)
EMULATOR_VECTORS(double, double)
EMULATOR_VECTORS(long long, longlong)
EMULATOR_VECTORS(unsigned long long, ulonglong)
EMULATOR_VECTORS(unsigned char, uchar)

static thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = 32;

namespace emulator {

enum state { READY, AT_BLOCK, AT_WARP, DONE };

// fiber is a thread of the GPU: its stack, and the point at which it was suspended.
struct fiber {
	void *sp;
	char *stack; // its lowest address
	state at;
	unsigned mask; // of the function of the warp at which it waits
	unsigned phase, round; // exchanges and votes so far
	dim3 index;
};

enum { most_threads = 1024, stack_bytes = 64 << 10 };

// copy is one for which a thread does not wait: n floats, and 0 for the remaining ones of all.
struct copy {
	float *to;
	const float *from;
	int n, all;
	void make() const {
		for (int i = 0; i < all; i++)
			to[i] = i < n ? from[i] : 0;
	}
};

struct processor {
	char *stacks; // of all fibers, in one mapping, because a system has few
	fiber fibers[most_threads];
	int threads;
	fiber *running;
	void *sp; // of the scheduler
	uint64_t lanes[2][most_threads];
	int votes[2][most_threads];
	void (*kernel)(const uint64_t *);
	const uint64_t *args;
	// groups of pending copies, of each thread
	std::vector<std::vector<copy>> copies[most_threads];
	unsigned copied;
	// dynamic shared memory, which ends at an unmapped page
	char *shared, *page;
};

static thread_local processor *cpu;

// swap saves the registers that a call preserves and the stack at *from, and continues at to.
extern "C" void emulator_swap(void **from, void *to);
asm(R"(
.text
.local emulator_swap
.type emulator_swap, @function
emulator_swap:
	pushq %rbp
	pushq %rbx
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rsp, (%rdi)
	movq %rsi, %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	popq %rbp
	ret
.size emulator_swap, .-emulator_swap
)");

static void yield(state at) {
	fiber *f = cpu->running;
	f->at = at;
	emulator_swap(&f->sp, cpu->sp);
	threadIdx = f->index;
}

static void enter() {
	for (;;) {
		threadIdx = cpu->running->index;
		cpu->kernel(cpu->args);
		yield(DONE); // it then restarts, as another thread
	}
}

// the lowest word of a stack that did not overflow
static const uint64_t untouched = 0x9e3779b97f4a7c15;

static void prepare(fiber *f) {
	if (!f->stack) {
		f->stack = cpu->stacks + (f - cpu->fibers) * (size_t)stack_bytes;
		*(uint64_t *)f->stack = untouched;
		void **sp = (void **)(f->stack + stack_bytes);
		*--sp = 0;
		*--sp = (void *)enter;
		for (int i = 0; i < 6; i++)
			*--sp = 0;
		f->sp = sp;
	}
	f->at = READY;
	f->phase = f->round = 0;
	cpu->copies[f - cpu->fibers].assign(1, {});
}

// release resumes the fibers whose barrier is complete, and returns their number.
static int release() {
	int released = 0, alive = 0, at_block = 0;
	for (int i = 0; i < cpu->threads; i++) {
		alive += cpu->fibers[i].at != DONE;
		at_block += cpu->fibers[i].at == AT_BLOCK;
	}
	bool block = alive > 0 && at_block == alive;
	for (int w = 0; w < cpu->threads; w += 32) {
		int lanes = std::min(32, cpu->threads - w);
		fiber *f = cpu->fibers + w;
		for (int i = 0; i < lanes; i++) {
			if (f[i].at != AT_WARP)
				continue;
			bool all = true;
			for (int j = 0; j < lanes; j++)
				if (f[i].mask >> j & 1)
					all = all && (f[j].at == DONE || (f[j].at == AT_WARP && f[j].mask == f[i].mask));
			if (!all)
				continue;
			for (int j = lanes - 1; j >= 0; j--)
				if (f[i].mask >> j & 1 && f[j].at == AT_WARP && j != i)
					f[j].at = READY, released++;
			f[i].at = READY, released++;
		}
	}
	for (int i = 0; block && i < cpu->threads; i++)
		if (cpu->fibers[i].at == AT_BLOCK)
			cpu->fibers[i].at = READY, released++;
	return released;
}

// run_block returns false if its threads wait for each other at different places.
static bool run_block() {
	for (;;) {
		for (int i = 0; i < cpu->threads; i++) {
			fiber *f = cpu->running = cpu->fibers + i;
			if (f->at == READY)
				emulator_swap(&cpu->sp, f->sp);
		}
		int done = 0;
		for (int i = 0; i < cpu->threads; i++)
			done += cpu->fibers[i].at == DONE;
		if (done == cpu->threads)
			return true;
		if (!release())
			return false;
	}
}

enum { most_shared = 256 << 10, page_bytes = 4 << 10 };

static const char *run(void (*kernel)(const uint64_t *), const uint32_t *grid, const uint32_t *block, uint32_t shared, const uint64_t *args) {
	if (!cpu) {
		void *stacks = mmap(0, most_threads * (size_t)stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (stacks == MAP_FAILED)
			return "there is no memory for the stacks of 1024 threads";
		char *memory = (char *)mmap(0, most_shared + page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED || mprotect(memory + most_shared, page_bytes, PROT_NONE))
			return "there is no memory for a block";
		cpu = new processor();
		cpu->stacks = (char *)stacks;
		cpu->page = memory + most_shared;
	}
	if (shared > most_shared || shared % 16)
		return "dynamic shared memory has at most 256 KiB, and here a multiple of 16 bytes";
	// a kernel that touches more than that fails at once
	cpu->shared = cpu->page - shared;
	if (!grid[0] || grid[0] > 0x7fffffff || !grid[1] || grid[1] > 0xffff || !grid[2] || grid[2] > 0xffff)
		return "a grid has 1 to 2147483647 by 65535 by 65535 blocks";
	uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
	if (threads < 1 || threads > most_threads || block[2] > 64)
		return "a block has 1 to 1024 threads, and at most 64 in its third dimension";
	cpu->threads = threads;
	cpu->kernel = kernel, cpu->args = args;
	gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block[0], block[1], block[2]};
	for (uint32_t z = 0; z < grid[2]; z++)
		for (uint32_t y = 0; y < grid[1]; y++)
			for (uint32_t x = 0; x < grid[0]; x++) {
				blockIdx = {x, y, z};
				for (int i = 0; i < cpu->threads; i++) {
					prepare(cpu->fibers + i);
					cpu->fibers[i].index = {i % block[0], i / block[0] % block[1], i / block[0] / block[1]};
				}
				if (!run_block()) {
					for (int i = 0; i < cpu->threads; i++)
						// they are inside of the kernel, and restart
						cpu->fibers[i].stack = 0;
					return "threads of a block wait for each other at different places";
				}
				for (int i = 0; i < cpu->threads; i++)
					if (*(uint64_t *)cpu->fibers[i].stack != untouched)
						return "a thread needs a larger stack";
			}
	return 0;
}

// call passes the arguments as a launch does: each from a word of its own, the last one possibly
// from several.
template <class... A, size_t... I> void call(void (*f)(A...), const uint64_t *words, std::index_sequence<I...>) {
	f(*(const std::decay_t<A> *)(words + I)...);
}
template <class... A> void call(void (*f)(A...), const uint64_t *words) { call(f, words, std::index_sequence_for<A...>()); }

static int lane() { return (cpu->running - cpu->fibers) % 32; }

// exchange shows v to the lanes of the warp, and returns theirs. Two sets of slots alternate,
// because no lane can be two exchanges ahead of another.
template <class T> static const uint64_t *exchange(unsigned mask, T v) {
	static_assert(sizeof v <= 8, "of at most 8 bytes");
	fiber *f = cpu->running;
	uint64_t *places = cpu->lanes[f->phase++ % 2] + (f - cpu->fibers) / 32 * 32;
	memcpy(places + lane(), &v, sizeof v);
	f->mask = mask;
	yield(AT_WARP);
	return places;
}

template <class T> static T of(const uint64_t *places, int lane) {
	T v;
	memcpy(&v, places + lane, sizeof v);
	return v;
}

static unsigned ballot(unsigned mask, bool v) {
	const uint64_t *places = exchange(mask, (int)v);
	unsigned all = 0;
	for (int i = 0; i < 32; i++)
		if (mask >> i & 1 && (cpu->running - cpu->fibers) / 32 * 32 + i < cpu->threads && of<int>(places, i))
			all |= 1u << i;
	return all;
}

// vote waits for the block, and counts its threads whose v is not 0.
static int vote(int v) {
	int *votes = cpu->votes[cpu->running->round++ % 2];
	votes[cpu->running - cpu->fibers] = v != 0;
	yield(AT_BLOCK);
	int n = 0;
	for (int i = 0; i < cpu->threads; i++)
		n += cpu->fibers[i].at != DONE && votes[i];
	return n;
}

} // namespace emulator

static inline void __syncthreads() { emulator::yield(emulator::AT_BLOCK); }
static inline int __syncthreads_or(int v) { return emulator::vote(v) > 0; }
static inline int __syncthreads_and(int v) { return emulator::vote(!v) == 0; }
static inline int __syncthreads_count(int v) { return emulator::vote(v); }
static inline void __syncwarp(unsigned mask = ~0u) { emulator::exchange(mask, 0); }
[[noreturn]] static inline void __trap() { abort(); }

template <class T> static inline T __shfl_sync(unsigned mask, T v, int from, int width = 32) {
	int base = emulator::lane() / width * width;
	return emulator::of<T>(emulator::exchange(mask, v), base + (unsigned)from % width);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int d, int width = 32) {
	(void)width;
	return emulator::of<T>(emulator::exchange(mask, v), emulator::lane() ^ d);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32) {
	int l = emulator::lane();
	return emulator::of<T>(emulator::exchange(mask, v), l % width + (int)d < width ? l + d : l);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32) {
	int l = emulator::lane();
	return emulator::of<T>(emulator::exchange(mask, v), l % width >= (int)d ? l - d : l);
}
static inline unsigned __ballot_sync(unsigned mask, int v) { return emulator::ballot(mask, v); }
static inline int __any_sync(unsigned mask, int v) { return emulator::ballot(mask, v) != 0; }
static inline int __all_sync(unsigned mask, int v) { return emulator::ballot(mask, !v) == 0; }
static inline void __nanosleep(unsigned ns) { usleep(ns / 1000); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Blocks run one after the other, and so do the threads between two barriers.
template <class T> static inline T emulator_was(T *p, T next) {
	T old = *p;
	*p = next;
	return old;
}
template <class T, class V> static inline T atomicAdd(T *p, V v) { return emulator_was(p, (T)(*p + v)); }
template <class T, class V> static inline T atomicMax(T *p, V v) { return emulator_was(p, std::max(*p, (T)v)); }
template <class T, class V> static inline T atomicMin(T *p, V v) { return emulator_was(p, std::min(*p, (T)v)); }
static inline unsigned atomicInc(unsigned *p, unsigned most) { return emulator_was(p, *p >= most ? 0 : *p + 1); }
template <class T, class V> static inline T atomicOr(T *p, V v) { return emulator_was(p, (T)(*p | v)); }
template <class T, class V> static inline T atomicExch(T *p, V v) { return emulator_was(p, (T)v); }
template <class T, class U, class V> static inline T atomicCAS(T *p, U compare, V v) {
	return *p == (T)compare ? emulator_was(p, (T)v) : *p;
}

static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline double rsqrt(double v) { return 1 / sqrt(v); }
static inline void sincospi(double v, double *s, double *c) { *s = sin(M_PI * v), *c = cos(M_PI * v); }
static inline float rsqrtf(float v) { return 1 / sqrtf(v); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned __int128)a * b >> 64; }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class To, class From> static inline To emulator_bits(From v) {
	To to;
	memcpy(&to, &v, sizeof to);
	return to;
}
static inline int __float_as_int(float v) { return emulator_bits<int>(v); }
static inline unsigned __float_as_uint(float v) { return emulator_bits<unsigned>(v); }
static inline float __int_as_float(int v) { return emulator_bits<float>(v); }
static inline float __uint_as_float(unsigned v) { return emulator_bits<float>(v); }
static inline long long __double_as_longlong(double v) { return emulator_bits<long long>(v); }
static inline double __longlong_as_double(long long v) { return emulator_bits<double>(v); }
static inline int __double2hiint(double v) { return (int)(emulator_bits<uint64_t>(v) >> 32); }
static inline int __double2loint(double v) { return (int)emulator_bits<uint64_t>(v); }
static inline double __hiloint2double(int hi, int lo) { return emulator_bits<double>((uint64_t)(uint32_t)hi << 32 | (uint32_t)lo); }
template <class A, class B> static inline std::common_type_t<A, B> min(A a, B b) {
	typedef std::common_type_t<A, B> T;
	return (T)b < (T)a ? (T)b : (T)a;
}
template <class A, class B> static inline std::common_type_t<A, B> max(A a, B b) {
	typedef std::common_type_t<A, B> T;
	return (T)a < (T)b ? (T)b : (T)a;
}
using std::isfinite;
using std::isinf;
using std::isnan;

// The functions of async.h. Half of the copies are made at once, and half when their thread waits
// for them: both must be correct.
#define dynamic_shared ((float4 *)emulator::cpu->shared)
static std::vector<std::vector<emulator::copy>> &emulator_copies() { return emulator::cpu->copies[emulator::cpu->running - emulator::cpu->fibers]; }
static inline void emulator_copy(emulator::copy c) {
	if (((uintptr_t)c.to | (uintptr_t)c.from) % (4 * c.all))
		abort(); // the address is not a multiple of the size
	if (emulator::cpu->copied++ * 2654435761u >> 31)
		c.make();
	else
		emulator_copies().back().push_back(c);
}
static inline void copy_four(float *to, const float *from, int n) { emulator_copy({to, from, n, 4}); }
static inline void copy_one(float *to, const float *from, int n) { emulator_copy({to, from, n, 1}); }
static inline void copy_double(double *to, const double *from, bool there) { emulator_copy({(float *)to, (const float *)from, there ? 2 : 0, 2}); }
static inline void copy_eight(void *to, const void *from, bool there) { emulator_copy({(float *)to, (const float *)from, there ? 4 : 0, 4}); }
static inline void copies_end() { emulator_copies().emplace_back(); }
template <int n> static inline void copies_but() {
	auto &groups = emulator_copies();
	for (; groups.size() > n + 1; groups.erase(groups.begin()))
		for (auto &c : groups.front())
			c.make();
}
static inline float power_of_two(float x) { return exp2f(x); }

// ldmatrix, ldmatrix_trans and mma are the instructions of those names, for elements of two bytes.
// T is a type of two bytes that converts to float.
template <class T> static inline unsigned emulator_pair(const T *low, const T *high) {
	return emulator_bits<unsigned short>(*low) | (unsigned)emulator_bits<unsigned short>(*high) << 16;
}
template <class T> static inline void ldmatrix(unsigned (&to)[4], const T *row) {
	const uint64_t *places = emulator::exchange(~0u, row);
	int g = emulator::lane() / 4, t = emulator::lane() % 4;
	for (int i = 0; i < 4; i++) {
		const T *from = emulator::of<const T *>(places, 8 * i + g);
		to[i] = emulator_pair(from + 2 * t, from + 2 * t + 1);
	}
}
template <class T> static inline void ldmatrix_trans(unsigned (&to)[4], const T *row) {
	const uint64_t *places = emulator::exchange(~0u, row);
	int g = emulator::lane() / 4, t = emulator::lane() % 4;
	for (int i = 0; i < 4; i++)
		to[i] = emulator_pair(emulator::of<const T *>(places, 8 * i + 2 * t) + g, emulator::of<const T *>(places, 8 * i + 2 * t + 1) + g);
}
static inline float emulator_half(unsigned both, int which) { return emulator_bits<float>((which ? both >> 16 : both & 0xffff) << 16); }
static inline void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
	float left[2][16], right[2][16];
	int g = emulator::lane() / 4, t = emulator::lane() % 4;
	for (int half = 0; half < 2; half++) {
		const uint64_t *places = emulator::exchange(~0u, (uint64_t)a[2 * half] | (uint64_t)a[2 * half + 1] << 32);
		for (int row = 0; row < 2; row++)
			for (int k = 0; k < 8; k++)
				left[row][8 * half + k] = emulator_half((unsigned)(places[4 * g + k / 2] >> 32 * row), k % 2);
	}
	const uint64_t *places = emulator::exchange(~0u, (uint64_t)b0 | (uint64_t)b1 << 32);
	for (int col = 0; col < 2; col++)
		for (int k = 0; k < 16; k++)
			right[col][k] = emulator_half((unsigned)(places[4 * (2 * t + col) + k % 8 / 2] >> 32 * (k / 8)), k % 2);
	for (int i = 0; i < 4; i++) {
		float sum = 0;
		for (int k = 0; k < 16; k++)
			sum += left[i / 2][k] * right[i % 2][k];
		d[i] += sum;
	}
}
