// Copies of many ranges in one launch. Host memory is read and written in place, at its address for
// kernels.

typedef unsigned long long u64;

enum { max_ranges = 170 }; // as many as fit into 4 KiB of arguments; the same as in shim.c

struct range {
	u64 to, from, bytes; // bytes < 2^31
};

struct ranges {
	struct range at[max_ranges];
};

enum { ahead = 4 }; // loads before the first store, because loads from the host take long

#define COPY(T) { \
	T *to = (T *)r.to, word[ahead]; \
	const T *from = (const T *)r.from; \
	const unsigned n = (unsigned)r.bytes / sizeof(T); \
	for (unsigned i = first; i < n; i += ahead * step) { \
		_Pragma("unroll") \
		for (unsigned k = 0; k < ahead; k++) \
			if (i + k * step < n) \
				word[k] = from[i + k * step]; \
		_Pragma("unroll") \
		for (unsigned k = 0; k < ahead; k++) \
			if (i + k * step < n) \
				to[i + k * step] = word[k]; \
	} \
	tail = (unsigned)r.bytes % sizeof(T); \
}

// copy_ranges has a column of blocks for each range. It copies the widest words to which both
// addresses are aligned.
extern "C" __global__ void copy_ranges(const struct ranges all) {
	const struct range r = all.at[blockIdx.x];
	const unsigned first = blockIdx.y * blockDim.x + threadIdx.x, step = gridDim.y * blockDim.x;
	const unsigned odd = (unsigned)(r.to | r.from) % 16;
	unsigned tail;
	if (odd == 0)
		COPY(uint4)
	else if (odd % 8 == 0)
		COPY(uint2)
	else if (odd % 4 == 0)
		COPY(unsigned)
	else
		COPY(unsigned char)
	if (first < tail) {
		const u64 i = r.bytes - tail + first;
		((unsigned char *)r.to)[i] = ((const unsigned char *)r.from)[i];
	}
}
