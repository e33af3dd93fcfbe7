// Consecutive all-reduces in C: nccl_loop LIBRARY RANKS BYTES TIMES BLOCKING prints the nanoseconds
// per all-reduce on the slowest rank. Each rank is a thread with its own GPU.
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
	char bytes[128];
} unique_id;

typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking, cga_cluster_size;
} config;

static void *cuda, *nccl;
static int ranks, blocking;
static long times;
static size_t bytes;
static unique_id id;
static double took[64];
static pthread_barrier_t together;

static void *symbol(void *library, const char *name) {
	void *f = dlsym(library, name);
	if (f == NULL) {
		fprintf(stderr, "there is no %s\n", name);
		exit(1);
	}
	return f;
}

#define CUDA(name, ...) must(((int (*)())symbol(cuda, name))(__VA_ARGS__), name)

static void must(int r, const char *name) {
	if (r != 0) {
		fprintf(stderr, "%s: %d\n", name, r);
		exit(1);
	}
}

static int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
static int (*state)(void *, int *);

// settle waits while a call is in progress. The communicator may be the one that the call makes.
static void settle(int r, void **comm, const char *name) {
	while (r == 7) {
		sched_yield();
		int s = 0;
		must(state(*comm, &s), name);
		r = s;
	}
	must(r, name);
}

static void loop(void *comm, void *stream, void *p, long n) {
	for (long i = 0; i < n; i++)
		settle(all_reduce(p, p, bytes / 4, 7, 0, comm, stream), &comm, "ncclAllReduce");
	CUDA("cuStreamSynchronize", stream);
}

static void *rank(void *number) {
	int r = (int)(long)number, device;
	void *context, *stream, *p, *comm;
	config c = {sizeof c, 0xcafebeef, 21400, blocking, INT_MIN};
	CUDA("cuDeviceGet", &device, r);
	CUDA("cuDevicePrimaryCtxRetain", &context, device);
	CUDA("cuCtxSetCurrent", context);
	CUDA("cuStreamCreateWithPriority", &stream, 1, 0);
	must(((int (*)(void **, size_t))symbol(cuda, "cuMemAlloc_v2"))(&p, bytes), "cuMemAlloc");
	must(((int (*)(void *, unsigned char, size_t, void *))symbol(cuda, "cuMemsetD8Async"))(p, 0, bytes, stream), "cuMemsetD8Async");
	settle(((int (*)(void **, int, unique_id, int, config *))symbol(nccl, "ncclCommInitRankConfig"))(&comm, ranks, id, r, &c), &comm, "ncclCommInitRankConfig");
	CUDA("cuCtxSetCurrent", context);
	loop(comm, stream, p, 20);
	pthread_barrier_wait(&together);
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	loop(comm, stream, p, times);
	clock_gettime(CLOCK_MONOTONIC, &b);
	took[r] = (b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec);
	return NULL;
}

int main(int n, char **args) {
	if (n != 6)
		return 2;
	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	nccl = dlopen(args[1], RTLD_NOW);
	if (cuda == NULL || nccl == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	ranks = atoi(args[2]), bytes = atol(args[3]), times = atol(args[4]), blocking = atoi(args[5]);
	all_reduce = symbol(nccl, "ncclAllReduce");
	state = symbol(nccl, "ncclCommGetAsyncError");
	CUDA("cuInit", 0);
	must(((int (*)(unique_id *))symbol(nccl, "ncclGetUniqueId"))(&id), "ncclGetUniqueId");
	pthread_barrier_init(&together, NULL, ranks);
	pthread_t threads[64];
	for (long r = 0; r < ranks; r++)
		pthread_create(&threads[r], NULL, rank, (void *)r);
	double worst = 0;
	for (int r = 0; r < ranks; r++) {
		pthread_join(threads[r], NULL);
		worst = took[r] > worst ? took[r] : worst;
	}
	printf("%.0f\n", worst / times);
	return 0;
}
