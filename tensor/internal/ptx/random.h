// Random numbers by Philox4x32 with ten rounds, as plan.Random describes them.

#pragma once

#include "kernels.h"

// philox returns words 4*i to 4*i+3 of a stream.
static __device__ uint4 philox(u64 i, u64 seed, u64 stream) {
	uint4 c = {(unsigned)i, (unsigned)(i >> 32), (unsigned)stream, (unsigned)(stream >> 32)};
	unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
	for (int round = 0; round < 10; round++) {
		u64 a = (u64)c.x * 0xD2511F53u, b = (u64)c.z * 0xCD9E8D57u;
		c = uint4{(unsigned)(b >> 32) ^ c.y ^ k0, (unsigned)b, (unsigned)(a >> 32) ^ c.w ^ k1, (unsigned)a};
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	return c;
}

// source is the source of a kernel's random numbers. If live is not 0, it is the address of the
// seed in device memory.
struct source {
	u64 seed, stream;
	const u64 *live;
	__device__ uint4 words(u64 i) const { return philox(i, live ? *live : seed, stream); }
};

// numbers returns the two 64-bit numbers that four words make.
static __device__ ulonglong2 numbers(uint4 r) { return {(u64)r.y << 32 | r.x, (u64)r.w << 32 | r.z}; }
