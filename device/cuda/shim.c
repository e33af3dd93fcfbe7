//go:build cuda

#include "shim.h"

#include <stdio.h>
#include <string.h>

static __thread uint64_t bound;

static inline int bind(dev d) {
	if (bound == d->serial)
		return CUDA_SUCCESS;
	CUresult r = cuCtxSetCurrent(d->context);
	bound = r == CUDA_SUCCESS ? d->serial : 0;
	return r;
}

// CALL binds the thread and makes one call.
#define CALL(call) do { int bad = bind(d); return bad ? bad : (int)(call); } while (0)

int cistern_bind(dev d) { return bind(d); }

void cistern_unbind(void) { bound = 0; }

void cistern_error_name(int code, char *name, int size) {
	const char *s = NULL;
	if (cuGetErrorName(code, &s) != CUDA_SUCCESS || s == NULL)
		s = "unknown error";
	snprintf(name, size, "%s", s);
}

int cistern_alloc(dev d, size_t bytes, uint64_t *p) {
	*p = 0;
	CALL(cuMemAlloc((CUdeviceptr *)p, bytes));
}

int cistern_free(dev d, uint64_t p) { CALL(cuMemFree(p)); }

int cistern_mem_info(dev d, size_t *free, size_t *total) { CALL(cuMemGetInfo(free, total)); }

int cistern_host_alloc(dev d, size_t bytes, uint64_t *p) {
	void *host = NULL;
	int r = bind(d);
	if (r == CUDA_SUCCESS)
		r = cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
	*p = (uint64_t)host;
	return r;
}

int cistern_host_free(dev d, uint64_t p) { CALL(cuMemFreeHost((void *)p)); }

int cistern_host_register(dev d, uint64_t p, size_t bytes) {
	CALL(cuMemHostRegister((void *)p, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
}

int cistern_host_unregister(dev d, uint64_t p) { CALL(cuMemHostUnregister((void *)p)); }

int cistern_host_pointer(dev d, uint64_t host, uint64_t *p) {
	CALL(cuMemHostGetDevicePointer((CUdeviceptr *)p, (void *)host, 0));
}

int cistern_enable_peer(dev d, dev peer) {
	int r = bind(d);
	if (r == CUDA_SUCCESS)
		r = cuCtxEnablePeerAccess(peer->context, 0);
	return r == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : r;
}

static CUmemAllocationProp properties(int ordinal) {
	CUmemAllocationProp p;
	memset(&p, 0, sizeof p);
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.location.id = ordinal;
	return p;
}

int cistern_granularity(dev d, int ordinal, size_t *bytes) {
	CUmemAllocationProp p = properties(ordinal);
	CALL(cuMemGetAllocationGranularity(bytes, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

int cistern_reserve(dev d, size_t bytes, uint64_t *p) { CALL(cuMemAddressReserve((CUdeviceptr *)p, bytes, 0, 0, 0)); }

int cistern_unreserve(dev d, uint64_t p, size_t bytes) { CALL(cuMemAddressFree(p, bytes)); }

int cistern_map(dev d, int ordinal, uint64_t p, size_t bytes, const int *peers, int n) {
	CUmemAllocationProp prop = properties(ordinal);
	CUmemGenericAllocationHandle h;
	CUmemAccessDesc access[64];
	int r = bind(d);
	if (r == CUDA_SUCCESS)
		r = cuMemCreate(&h, bytes, &prop, 0);
	if (r != CUDA_SUCCESS)
		return r;
	r = cuMemMap(p, bytes, 0, h, 0);
	if (r == CUDA_SUCCESS) {
		int m = 0;
		for (int i = -1; i < n && m < 64; i++, m++) {
			access[m].location = prop.location;
			if (i >= 0)
				access[m].location.id = peers[i];
			access[m].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		}
		r = cuMemSetAccess(p, bytes, access, m);
		if (r != CUDA_SUCCESS)
			cuMemUnmap(p, bytes);
	}
	cuMemRelease(h); // the mapping keeps the memory
	return r;
}

int cistern_unmap(dev d, uint64_t p, size_t bytes) { CALL(cuMemUnmap(p, bytes)); }

int cistern_stream_create(dev d, int priority, uint64_t *s) {
	int r = bind(d);
	if (r == CUDA_SUCCESS)
		r = cuStreamCreateWithPriority((CUstream *)s, CU_STREAM_NON_BLOCKING, priority);
	return r;
}

int cistern_stream_destroy(dev d, uint64_t s) { CALL(cuStreamDestroy((CUstream)s)); }
int cistern_stream_query(dev d, uint64_t s) { CALL(cuStreamQuery((CUstream)s)); }
int cistern_stream_synchronize(dev d, uint64_t s) { CALL(cuStreamSynchronize((CUstream)s)); }
int cistern_synchronize(dev d) { CALL(cuCtxSynchronize()); }

int cistern_event_create(dev d, int timed, uint64_t *e) {
	CALL(cuEventCreate((CUevent *)e, timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
}

int cistern_event_destroy(dev d, uint64_t e) { CALL(cuEventDestroy((CUevent)e)); }
int cistern_event_record(dev d, uint64_t e, uint64_t s) { CALL(cuEventRecord((CUevent)e, (CUstream)s)); }
int cistern_event_query(dev d, uint64_t e) { CALL(cuEventQuery((CUevent)e)); }
int cistern_event_synchronize(dev d, uint64_t e) { CALL(cuEventSynchronize((CUevent)e)); }
int cistern_stream_wait(dev d, uint64_t s, uint64_t e) { CALL(cuStreamWaitEvent((CUstream)s, (CUevent)e, 0)); }

int cistern_event_elapsed(dev d, uint64_t start, uint64_t end, float *ms) {
	CALL(cuEventElapsedTime(ms, (CUevent)start, (CUevent)end));
}

int cistern_h2d(dev d, uint64_t s, uint64_t to, uint64_t from, size_t bytes) {
	CALL(cuMemcpyHtoDAsync(to, (const void *)from, bytes, (CUstream)s));
}

int cistern_d2h(dev d, uint64_t s, uint64_t to, uint64_t from, size_t bytes) {
	CALL(cuMemcpyDtoHAsync((void *)to, from, bytes, (CUstream)s));
}

// cuMemcpyAsync instead of cuMemcpyDtoDAsync, because with unified addresses it also copies across
// devices.
int cistern_d2d(dev d, uint64_t s, uint64_t to, uint64_t from, size_t bytes) {
	CALL(cuMemcpyAsync(to, from, bytes, (CUstream)s));
}

int cistern_copy_2d(dev d, uint64_t s, const cistern_rows *r) {
	CUDA_MEMCPY2D c;
	memset(&c, 0, sizeof c);
	c.srcMemoryType = r->from_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_UNIFIED;
	c.srcHost = (const void *)r->from;
	c.srcDevice = r->from;
	c.srcPitch = r->from_pitch;
	c.dstMemoryType = r->to_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_UNIFIED;
	c.dstHost = (void *)r->to;
	c.dstDevice = r->to;
	c.dstPitch = r->to_pitch;
	c.WidthInBytes = r->width;
	c.Height = r->height;
	CALL(cuMemcpy2DAsync(&c, (CUstream)s));
}

int cistern_memset(dev d, uint64_t s, uint64_t p, unsigned char value, size_t bytes) {
	CALL(cuMemsetD8Async(p, value, bytes, (CUstream)s));
}

// The driver's batch copy, with the types of CUDA 12.8; older headers don't have them.
typedef struct {
	int type, id;
} location;

typedef struct {
	int source_order; // 1: in the order of the stream
	location source, destination;
	unsigned flags;
} attributes;

typedef CUresult (*batch_12)(uint64_t *, uint64_t *, size_t *, size_t, attributes *, size_t *, size_t, size_t *, CUstream);

int cistern_batch(dev d, uint64_t s, uint64_t *to, uint64_t *from, size_t *bytes, size_t n) {
	static batch_12 batch;
	static int looked;
	if (!__atomic_load_n(&looked, __ATOMIC_ACQUIRE)) {
		batch = (batch_12)cistern_symbol("cuMemcpyBatchAsync");
		__atomic_store_n(&looked, 1, __ATOMIC_RELEASE);
	}
	int r = bind(d);
	if (r != CUDA_SUCCESS)
		return r;
	if (batch != NULL && n > 1) {
		attributes a;
		size_t first = 0, failed = 0;
		memset(&a, 0, sizeof a);
		a.source_order = 1;
		r = batch(to, from, bytes, n, &a, &first, 1, &failed, (CUstream)s);
		if (r != CUDA_ERROR_NOT_SUPPORTED)
			return r;
		r = CUDA_SUCCESS;
	}
	for (size_t i = 0; i < n && r == CUDA_SUCCESS; i++)
		r = cuMemcpyAsync(to[i], from[i], bytes[i], (CUstream)s);
	return r;
}

int cistern_module_load(dev d, const void *image, uint64_t *m, char *log, int size) {
	CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, (void *)(uintptr_t)size};
	CALL(cuModuleLoadDataEx((CUmodule *)m, image, 2, options, values));
}

// The driver would load kernels lazily, at their first launch, and wait for the device then. After
// a kernel that waits for a later one that is a deadlock. So each kernel is loaded at its look-up.
int cistern_module_kernel(dev d, uint64_t m, const char *name, uint64_t *k) {
	int r = bind(d);
	if (r == CUDA_SUCCESS)
		r = cuModuleGetFunction((CUfunction *)k, (CUmodule)m, name);
	if (r != CUDA_SUCCESS)
		return r;
	CUresult (*load)(CUfunction) = (CUresult (*)(CUfunction))cistern_symbol("cuFuncLoad");
	if (load != NULL)
		return load((CUfunction)*k);
	int registers;
	return cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, (CUfunction)*k);
}

int cistern_kernel_shared(dev d, uint64_t k, uint32_t bytes) {
	CALL(cuFuncSetAttribute((CUfunction)k, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes));
}

int cistern_module_unload(dev d, uint64_t m) { CALL(cuModuleUnload((CUmodule)m)); }

enum { max_args = 512 }; // 4 KiB, the limit of a kernel

int cistern_launch(dev d, const cistern_launch_config *c, uint64_t *args) {
	void *params[max_args];
	for (uint32_t i = 0; i < c->n; i++)
		params[i] = &args[i];
	if (!c->dependent)
		CALL(cuLaunchKernel((CUfunction)c->kernel, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2],
			c->shared, (CUstream)c->stream, params, NULL));
	CUlaunchAttribute early;
	memset(&early, 0, sizeof early);
	early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
	early.value.programmaticStreamSerializationAllowed = 1;
	CUlaunchConfig config = {c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, (CUstream)c->stream, &early, 1};
	CUresult (*launch)(const CUlaunchConfig *, CUfunction, void **, void **) = d->launch_ex;
	CALL(launch(&config, (CUfunction)c->kernel, params, NULL));
}

enum {
	max_ranges = 170,    // of one launch; the same as in kernels.cu
	threads = 256,       // of a block
	block_bytes = 16384, // the bytes that a block copies with one wait for its loads
};

int cistern_copy_ranges(dev d, uint64_t s, uint64_t kernel, cistern_range *r, size_t n) {
	cistern_range rest[max_ranges];
	int bad = bind(d);
	while (n > 0 && bad == 0) {
		size_t some = n < max_ranges ? n : max_ranges;
		uint64_t most = 0;
		for (size_t i = 0; i < some; i++)
			most = r[i].bytes > most ? r[i].bytes : most;
		void *params[] = {r};
		if (some < max_ranges) { // the driver reads all max_ranges
			memset(rest, 0, sizeof rest);
			params[0] = memcpy(rest, r, some * sizeof *r);
		}
		bad = cuLaunchKernel((CUfunction)kernel, some, (most + block_bytes - 1) / block_bytes, 1, threads, 1, 1, 0, (CUstream)s,
			params, NULL);
		r += some;
		n -= some;
	}
	return bad;
}

// Relaxed for the reason in capture.go.
int cistern_capture_begin(dev d, uint64_t s) { CALL(cuStreamBeginCapture((CUstream)s, CU_STREAM_CAPTURE_MODE_RELAXED)); }

int cistern_capture_end(dev d, uint64_t s, uint64_t *graph) { CALL(cuStreamEndCapture((CUstream)s, (CUgraph *)graph)); }

int cistern_graph_instantiate(dev d, uint64_t graph, uint64_t *exec, size_t *nodes) {
	int r = bind(d);
	if (r == CUDA_SUCCESS)
		r = cuGraphGetNodes((CUgraph)graph, NULL, nodes);
	if (r == CUDA_SUCCESS)
		r = cuGraphInstantiateWithFlags((CUgraphExec *)exec, (CUgraph)graph, 0);
	return r;
}

int cistern_graph_launch(dev d, uint64_t exec, uint64_t s) { CALL(cuGraphLaunch((CUgraphExec)exec, (CUstream)s)); }

// In drivers the entry point without a version keeps the parameters of CUDA 11, unlike in newer
// headers.
int cistern_graph_update(dev d, uint64_t exec, uint64_t graph, int *result) {
	typedef CUresult update_11(CUgraphExec, CUgraph, CUgraphNode *, int *);
	update_11 *update = (update_11 *)cistern_symbol("cuGraphExecUpdate");
	CUgraphNode node;
	*result = 0;
	if (update == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	CALL(update((CUgraphExec)exec, (CUgraph)graph, &node, result));
}

int cistern_graph_destroy(dev d, uint64_t graph, uint64_t exec) {
	int r = bind(d);
	if (r == CUDA_SUCCESS && exec != 0)
		r = cuGraphExecDestroy((CUgraphExec)exec);
	if (r == CUDA_SUCCESS && graph != 0)
		r = cuGraphDestroy((CUgraph)graph);
	return r;
}
