// A driver whose GPU is the processor, and which does everything at once. It is enough to run
// copies without a GPU. kernels.h is the CUDA C of the kernels, compiled as C. The driver prints
// its launches and copies.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { unsigned x, y, z, w; } __attribute__((aligned(16))) uint4;
typedef struct { unsigned x, y; } __attribute__((aligned(8))) uint2;
static uint4 gridDim, blockDim, blockIdx, threadIdx;
#define __global__
#define __nanosleep usleep
#include "kernels.h"

int cuInit(unsigned flags) { return 0; }
int cuGetErrorName(int code, const char **name) { *name = "A_CODE_OF_THE_TESTS"; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGetName(char *name, int n, int d) { return snprintf(name, n, "processor") < 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = 4ULL << 30; return 0; }
static int major_of(void) {
	char *major = getenv("CISTERN_PROCESSOR_MAJOR");
	return major ? atoi(major) : 7;
}
int cuDriverGetVersion(int *v) { *v = 12040; return 0; }
int cuDeviceGetAttribute(int *v, int attribute, int d) { *v = attribute == 75 ? major_of() : 5; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = &gridDim; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { return 0; }
int cuCtxResetPersistingL2Cache(void) { return 0; }
int cuCtxSetCurrent(void *c) { return 0; }
int cuMemGetAllocationGranularity(size_t *n, const void *p, int option) { *n = 2 << 20; return 0; }

// A capture is a list of calls with copies of their arguments. Their original order satisfies every
// order of streams. A query of or a wait for something captured ends the process, because this
// package must refuse such calls.
struct call {
	void *f;
	uint64_t a[5];
	void *copy;
	struct call *next;
};
struct graph {
	struct call *first, **last;
	size_t n;
	int ended;
};
// A memset of HELD bytes to HELD stops the stream until the first byte changes. Events that are
// recorded until then are not complete.
#define HELD 0xEE
struct stream { struct graph *capture; unsigned char *held; };
struct event { struct graph *capture; unsigned char *held; };
static int is_held(unsigned char *byte) { return byte && *(volatile unsigned char *)byte == HELD; }

static void check(const char *name, struct graph *capture) {
	if (capture) {
		fprintf(stderr, "%s of what is captured\n", name);
		abort();
	}
}

// captured adds a call to the capture of s, if there is one.
static struct call *captured(void *s, void *f, uint64_t a, uint64_t b, uint64_t c) {
	struct graph *g = ((struct stream *)s)->capture;
	if (!g)
		return NULL;
	struct call *x = calloc(1, sizeof *x);
	*x = (struct call){f, {a, b, c}};
	*g->last = x;
	g->last = &x->next;
	g->n++;
	return x;
}

static struct stream *streams[1024];

int cuStreamCreateWithPriority(struct stream **s, unsigned flags, int priority) {
	int i = 0;
	*s = calloc(1, sizeof **s);
	while (!__sync_bool_compare_and_swap(&streams[i], NULL, *s))
		i++;
	return 0;
}
int cuStreamDestroy_v2(void *s) {
	for (int i = 0; i < 1024; i++)
		if (streams[i] == s)
			streams[i] = NULL;
	return 0; // others may read it
}
int cuStreamSynchronize(struct stream *s) {
	check("a synchronization", s->capture);
	while (is_held(s->held))
		usleep(100);
	return 0;
}
int cuStreamQuery(struct stream *s) { check("a query", s->capture); return is_held(s->held) ? 600 : 0; }
int cuStreamWaitEvent(struct stream *s, struct event *e, unsigned flags) {
	if (e->capture && e->capture->ended || e->capture != s->capture && s->capture)
		check("a wait", e->capture ? e->capture : s->capture);
	s->capture = e->capture;
	if (is_held(e->held))
		s->held = e->held;
	return fprintf(stderr, "a wait for an event\n") < 0;
}
int cuStreamBeginCapture_v2(struct stream *s, int mode) {
	check("a capture", s->capture);
	struct graph *g = calloc(1, sizeof *g);
	g->last = &g->first;
	s->capture = g;
	return fprintf(stderr, "a capture of mode %d\n", mode) < 0;
}
int cuStreamEndCapture(struct stream *s, struct graph **g) {
	*g = s->capture;
	(*g)->ended = 1; // not freed, because its events refer to it
	for (int i = 0; i < 1024; i++)
		if (streams[i] && streams[i]->capture == *g)
			streams[i]->capture = NULL;
	return 0;
}
int cuGraphGetNodes(struct graph *g, void *nodes, size_t *n) { *n = g->n; return 0; }
int cuGraphInstantiateWithFlags(struct graph **exec, struct graph *g, unsigned long long flags) {
	*exec = malloc(sizeof *g);
	**exec = *g;
	return 0;
}
int cuGraphExecUpdate(struct graph *exec, struct graph *g, void *node, int *result) {
	struct call *a = exec->first, *b = g->first;
	for (; a && b && a->f == b->f; a = a->next, b = b->next)
		;
	*result = exec->n != g->n ? 2 : a || b ? 3 : 0;
	if (*result)
		return 910;
	*exec = *g;
	return 0;
}
int cuGraphExecDestroy(struct graph *g) { free(g); return fprintf(stderr, "the end of an executable graph\n") < 0; }
int cuGraphDestroy(struct graph *g) { return fprintf(stderr, "the end of a graph\n") < 0; }

// Everything is done at once, so events are complete as soon as they are recorded, except on
// streams that are held.
int cuEventCreate(void **e, unsigned flags) {
	fprintf(stderr, "an event with the flags %u\n", flags);
	*e = calloc(1, sizeof(struct event));
	return 0;
}
int cuEventDestroy_v2(void *e) { free(e); return fprintf(stderr, "the end of an event\n") < 0; }
int cuEventRecord(struct event *e, struct stream *s) {
	*e = (struct event){s->capture, is_held(s->held) ? s->held : NULL};
	return fprintf(stderr, "a record of an event\n") < 0;
}
int cuEventQuery(struct event *e) {
	check("a query", e->capture);
	fprintf(stderr, "a query of an event\n");
	return is_held(e->held) ? 600 : 0;
}
int cuEventSynchronize(struct event *e) {
	check("a synchronization", e->capture);
	while (is_held(e->held))
		usleep(100);
	return 0;
}
int cuEventElapsedTime(float *ms, struct event *start, struct event *end) {
	check("the time", start->capture ? start->capture : end->capture);
	*ms = 0;
	return 0;
}
int cuCtxSynchronize(void) {
	for (int i = 0; i < 1024; i++)
		if (streams[i])
			check("a synchronization of all", streams[i]->capture);
	return 0;
}

int cuMemAlloc_v2(uint64_t *p, size_t n) { *p = (uint64_t)aligned_alloc(256, (n + 255) / 256 * 256); return 0; }
int cuMemFree_v2(uint64_t p) { free((void *)p); return 0; }

// Reservations have memory at once, so mapping makes no difference.
int cuMemAddressReserve(uint64_t *p, size_t n, size_t align, uint64_t at, unsigned long long flags) {
	return !(*p = (uint64_t)aligned_alloc(2 << 20, n));
}
int cuMemAddressFree(uint64_t p, size_t n) { free((void *)p); return 0; }
int cuMemCreate(uint64_t *h, size_t n, const void *p, unsigned long long flags) { return 0; }
int cuMemMap(uint64_t p, size_t n, size_t at, uint64_t h, unsigned long long flags) { return 0; }
int cuMemSetAccess(uint64_t p, size_t n, const void *access, size_t count) { return 0; }
int cuMemUnmap(uint64_t p, size_t n) { return 0; }
int cuMemRelease(uint64_t h) { return 0; }

// Pinned memory has two addresses. Its address for kernels is higher by its length and one page.
static struct { char *host; size_t bytes; } pins[1024];

int cuMemHostAlloc(void **p, size_t n, unsigned flags) {
	size_t page = sysconf(_SC_PAGESIZE), bytes = (n + page - 1) / page * page;
	int i = 0, file = memfd_create("pinned", 0);
	char *at = mmap(NULL, 2 * bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (ftruncate(file, bytes) || at == MAP_FAILED)
		return 2;
	mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
	mmap(at + bytes + page, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
	close(file);
	while (pins[i].host)
		i++;
	pins[i].host = *p = at;
	pins[i].bytes = bytes;
	return 0;
}

int cuMemHostGetDevicePointer_v2(uint64_t *p, void *host, unsigned flags) {
	*p = (uint64_t)host; // registered
	for (int i = 0; i < 1024; i++)
		if (pins[i].host == host)
			*p += pins[i].bytes + sysconf(_SC_PAGESIZE);
	return 0;
}

int cuMemFreeHost(void *p) {
	for (int i = 0; i < 1024; i++)
		if (pins[i].host == p) {
			munmap(p, 2 * pins[i].bytes + sysconf(_SC_PAGESIZE));
			pins[i].host = NULL;
			return 0;
		}
	return 1;
}

int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) { return 0; }
int cuMemHostUnregister(void *p) { return 0; }

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t n, void *s) {
	if (captured(s, cuMemcpyAsync, to, from, n))
		return 0;
	fprintf(stderr, "copy of %zu\n", n);
	memcpy((void *)to, (void *)from, n);
	return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s) {
	if (!captured(s, cuMemcpyHtoDAsync_v2, to, (uint64_t)from, n))
		memcpy((void *)to, (void *)from, n);
	return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) {
	if (!captured(s, cuMemcpyDtoHAsync_v2, (uint64_t)to, from, n))
		memcpy(to, (void *)from, n);
	return 0;
}

struct side {
	size_t x, y;
	int type; // 1: host, 4: unified
	char *host;
	uint64_t p;
	void *array;
	size_t pitch;
};
struct rows {
	struct side from, to;
	size_t width, height;
};

static char *start(const struct side *s) {
	if (s->x || s->y || s->array || s->type != 1 && s->type != 4)
		return NULL;
	return s->type == 1 ? s->host : (char *)s->p;
}

int cuMemcpy2DAsync_v2(const struct rows *r, void *s) {
	struct call *x = captured(s, cuMemcpy2DAsync_v2, 0, 0, 0);
	if (x) {
		x->copy = memcpy(malloc(sizeof *r), r, sizeof *r);
		return 0;
	}
	char *from = start(&r->from), *to = start(&r->to);
	fprintf(stderr, "copy from %d to %d of %zu rows\n", r->from.type, r->to.type, r->height);
	if (!from || !to || r->from.pitch < r->width || r->to.pitch < r->width)
		return 1;
	for (size_t i = 0; i < r->height; i++)
		memcpy(to + i * r->to.pitch, from + i * r->from.pitch, r->width);
	return 0;
}
int cuMemsetD8Async(uint64_t p, unsigned char v, size_t n, struct stream *s) {
	if (!captured(s, cuMemsetD8Async, p, v, n))
		memset((void *)p, v, n);
	if (v == HELD && n == HELD)
		s->held = (void *)p;
	return 0;
}

// A function is the number of bytes of dynamic shared memory that its launches may have. It also
// declares some, which counts.
enum { declared = 2 << 10, free_ = (48 << 10) - declared };
static unsigned fill_ = free_, addOne_ = free_, copy_ranges_ = free_, other_ = free_;

static int waiting;  // the module whose kernels wait for the previous one
static int compiled; // the module of a fatbin, whose kernels wait if the GPU supports it

int cuModuleLoadDataEx(void **m, const void *image, unsigned n, void *options, void *values) {
	if (!memcmp(image, "\x50\xed\x55\xba", 4)) { // it has code for 8.x and 9.0
		*m = &compiled;
		int has = major_of() == 8 || major_of() == 9;
		fprintf(stderr, has ? "a load of compiled code\n" : "no compiled code for the GPU\n");
		return has ? 0 : 209;
	}
	fprintf(stderr, "a load of PTX\n");
	*m = strstr(image, "griddepcontrol.wait;") ? &waiting : &gridDim;
	if (*m == &waiting && getenv("CISTERN_NO_WAITS"))
		return 218; // CUDA_ERROR_INVALID_PTX
	// 222 is CUDA_ERROR_UNSUPPORTED_PTX_VERSION.
	return getenv("CISTERN_NO_GATHER") && strstr(image, "copy_ranges") ? 222 : 0;
}
int cuModuleUnload(void *m) { return 0; }
int cuFuncLoad(void *f) { return 0; }

int cuFuncSetAttribute(void *f, int id, int value) {
	if (id != 8 || value + declared > 227 << 10)
		return 1;
	*(unsigned *)f = value;
	return 0;
}

static int waits_; // the kernels of the module of the last look-up wait

int cuModuleGetFunction(void **f, void *m, const char *name) {
	if (!strcmp(name, "cistern_waits") && (m != &compiled || major_of() != 9))
		return 500;
	waits_ = m == &waiting || m == &compiled && major_of() == 9;
	*f = !strcmp(name, "copy_ranges") ? &copy_ranges_ : !strcmp(name, "fill") ? &fill_ : !strcmp(name, "addOne") ? &addOne_ : &other_;
	return 0;
}

static int out_of_reach(uint64_t p) {
	for (int i = 0; i < 1024; i++)
		if (pins[i].host && p - (uint64_t)pins[i].host < pins[i].bytes)
			return 1;
	return 0;
}

static void run(void *f, void **a) {
	if (f == &fill_)
		fill(*(unsigned char **)a[0], *(uint64_t *)a[1], *(unsigned char *)a[2]);
	else if (f == &addOne_)
		addOne(*(unsigned char **)a[0], *(uint64_t *)a[1]);
	else if (f == &copy_ranges_)
		copy_ranges(*(struct ranges *)a[0]);
}

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
	void *s, void **args, void **extra) {
	if (shared > *(unsigned *)f)
		return 1;
	struct call *x = captured(s, cuLaunchKernel, (uint64_t)f, gx, gy);
	if (x) {
		size_t n = f == &copy_ranges_ ? sizeof(struct ranges) : 8, bytes = f == &copy_ranges_ ? n : f == &fill_ ? 24 : f == &addOne_ ? 16 : 0;
		x->copy = malloc(bytes + 1);
		for (size_t i = 0; i * n < bytes; i++)
			memcpy((char *)x->copy + i * n, args[i], n);
		x->a[3] = bx;
		return 0;
	}
	gridDim = (uint4){gx, gy, gz};
	blockDim = (uint4){bx, by, bz};
	if (f == &copy_ranges_)
		fprintf(stderr, "launch for %u, %u blocks each\n", gx, gy);
	for (unsigned i = 0; f == &copy_ranges_ && i < gx; i++) {
		struct range *r = &((struct ranges *)args[0])->at[i];
		if (out_of_reach(r->to) || out_of_reach(r->from))
			return 700;
	}
	for (unsigned b = 0; b < gx * gy; b++)
		for (unsigned t = 0; t < bx; t++) {
			blockIdx = (uint4){b % gx, b / gx};
			threadIdx = (uint4){t};
			run(f, args);
		}
	return 0;
}

// A kernel that may be launched early must wait itself.
int cuLaunchKernelEx(const struct { unsigned grid[3], block[3], shared; void *stream; const struct { int id; char pad[4]; union { int on; char bytes[64]; }; } *attributes; unsigned n; } *c,
	void *f, void **args, void **extra) {
	if (!waits_ || c->n != 1 || c->attributes->id != 6 || c->attributes->on != 1)
		return 1;
	fprintf(stderr, "dependent launch of %u blocks\n", c->grid[0]);
	return cuLaunchKernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream, args, extra);
}

int cuGraphLaunch(struct graph *g, struct stream *s) {
	check("a launch", s->capture);
	for (struct call *x = g->first; x; x = x->next) {
		int bad = 0;
		void *args[] = {x->copy, (char *)x->copy + 8, (char *)x->copy + 16};
		if (x->f == cuLaunchKernel)
			bad = cuLaunchKernel((void *)x->a[0], x->a[1], x->a[2], 1, x->a[3], 1, 1, 0, s, args, NULL);
		else if (x->f == cuMemcpy2DAsync_v2)
			bad = cuMemcpy2DAsync_v2(x->copy, s);
		else
			bad = ((int (*)(uint64_t, uint64_t, uint64_t, void *))x->f)(x->a[0], x->a[1], x->a[2], s);
		if (bad)
			return bad;
	}
	return 0;
}
