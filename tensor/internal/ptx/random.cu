// Random numbers by Philox4x32 with ten rounds, as kernel.Philox: the same ones as on the host.

#include "kernels.h"

// philox is word 4*i to 4*i+3 of a stream.
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

// dropout: a thread for four elements. The seed is in device memory if live is not 0.
#define DROPOUT(T, t) \
	extern "C" __global__ void dropout_##t(T *dst, const T *x, u64 n, u64 seed, u64 stream, u64 below, T scale, const u64 *live) { \
		if (live) \
			seed = *live; \
		EACH(i, (n + 3) / 4) { \
			uint4 r = philox(i, seed, stream); \
			unsigned words[4] = {r.x, r.y, r.z, r.w}; \
			for (int j = 0; j < 4 && 4 * i + j < n; j++) \
				dst[4 * i + j] = x[4 * i + j] * (words[j] < below ? (T)0 : scale); \
		} \
	}
FLOATS(DROPOUT)
