// A CUDA driver on host memory, with the parts that collectives and handles need. Its GPUs have no
// kernels, and their streams are threads.
#include <cuda.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

enum { gpus = 8 };

static std::mutex mu; // guards everything in this file
static std::condition_variable changed;


struct CUgraph_st {
	std::vector<std::function<void()>> nodes;
};

struct CUgraphExec_st {
	std::vector<std::function<void()>> nodes;
};

struct CUctx_st {
	int ordinal;
	std::set<CUstream> streams;
};

struct CUstream_st {
	CUctx_st *context;
	std::deque<std::function<void()>> queue;
	bool busy = false, over = false;
	CUgraph_st *capture = nullptr;
	std::thread thread;
};

struct CUevent_st {
	long recorded = 0, reached = 0;
	std::chrono::steady_clock::time_point at;
};

static CUctx_st contexts[gpus];
static thread_local CUctx_st *current;

static void work(CUstream s) {
	std::unique_lock<std::mutex> lock(mu);
	for (;;) {
		changed.wait(lock, [&] { return s->over || !s->queue.empty(); });
		if (s->queue.empty())
			return;
		auto f = std::move(s->queue.front());
		s->queue.pop_front();
		s->busy = true;
		lock.unlock();
		f();
		lock.lock();
		s->busy = false;
		changed.notify_all();
	}
}

static CUresult push(CUstream s, std::function<void()> f) {
	std::lock_guard<std::mutex> lock(mu);
	if (s->capture != nullptr)
		s->capture->nodes.push_back(f);
	else
		s->queue.push_back(f);
	changed.notify_all();
	return CUDA_SUCCESS;
}

static bool idle(CUstream s) { return s->queue.empty() && !s->busy; }

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *v) { *v = 12040; return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult, const char **name) { *name = "AN_ERROR_OF_THE_FAKE"; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *n) { *n = gpus; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *d, int n) { *d = n; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int n, CUdevice d) { snprintf(name, n, "fake %d", d); return CUDA_SUCCESS; }
CUresult cuDeviceTotalMem(size_t *n, CUdevice) { *n = (size_t)1 << 32; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute, CUdevice) { *v = 8; return CUDA_SUCCESS; }
CUresult cuDeviceGetUuid(CUuuid *u, CUdevice d) { memset(u, d, sizeof *u); return CUDA_SUCCESS; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
	contexts[d].ordinal = d;
	*c = &contexts[d];
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext c) { current = c; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *c) { *c = current; return CUDA_SUCCESS; }
CUresult cuCtxEnablePeerAccess(CUcontext, unsigned) { return CUDA_SUCCESS; }

CUresult cuCtxSynchronize() {
	std::unique_lock<std::mutex> lock(mu);
	changed.wait(lock, [] {
		for (auto s : current->streams)
			if (!idle(s))
				return false;
		return true;
	});
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *p, size_t bytes) {
	*p = (CUdeviceptr)aligned_alloc(256, (bytes + 255) / 256 * 256);
	return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree(CUdeviceptr p) {
	cuCtxSynchronize();
	free((void *)p);
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t *unused, size_t *total) { *unused = *total = (size_t)1 << 32; return CUDA_SUCCESS; }
CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned) { return cuMemAlloc((CUdeviceptr *)p, bytes); }
CUresult cuMemFreeHost(void *p) { free(p); return CUDA_SUCCESS; }
CUresult cuMemHostGetDevicePointer(CUdeviceptr *p, void *host, unsigned) { *p = (CUdeviceptr)host; return CUDA_SUCCESS; }

CUresult cuMemHostRegister(void *, size_t, unsigned) { return CUDA_SUCCESS; }
CUresult cuMemHostUnregister(void *) { return CUDA_SUCCESS; }

// Reservations have memory at once, so mapping makes no difference.
CUresult cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t, CUdeviceptr, unsigned long long) { return cuMemAlloc(p, bytes); }
CUresult cuMemAddressFree(CUdeviceptr p, size_t) { return cuMemFree(p); }
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long) { return CUDA_SUCCESS; }
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) { return CUDA_SUCCESS; }
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) { return CUDA_SUCCESS; }
CUresult cuMemUnmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }

CUresult cuMemGetAllocationGranularity(size_t *n, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) {
	*n = 2 << 20;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *s, unsigned, int) {
	std::lock_guard<std::mutex> lock(mu);
	*s = new CUstream_st{};
	(*s)->context = current;
	current->streams.insert(*s);
	(*s)->thread = std::thread(work, *s);
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream s) {
	{
		std::lock_guard<std::mutex> lock(mu);
		s->context->streams.erase(s);
		s->over = true;
		changed.notify_all();
	}
	s->thread.join();
	delete s;
	return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream s) {
	std::lock_guard<std::mutex> lock(mu);
	return idle(s) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream s) {
	std::unique_lock<std::mutex> lock(mu);
	changed.wait(lock, [&] { return idle(s); });
	return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *e, unsigned) { *e = new CUevent_st{}; return CUDA_SUCCESS; }
CUresult cuEventDestroy(CUevent e) { delete e; return CUDA_SUCCESS; }

CUresult cuEventRecord(CUevent e, CUstream s) {
	long n;
	{
		std::lock_guard<std::mutex> lock(mu);
		if (s->capture != nullptr)
			return CUDA_SUCCESS;
		n = ++e->recorded;
	}
	return push(s, [=] {
		std::lock_guard<std::mutex> lock(mu);
		if (e->reached < n)
			e->reached = n;
		e->at = std::chrono::steady_clock::now();
		changed.notify_all();
	});
}

CUresult cuEventQuery(CUevent e) {
	std::lock_guard<std::mutex> lock(mu);
	return e->reached == e->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent e) {
	std::unique_lock<std::mutex> lock(mu);
	long n = e->recorded;
	changed.wait(lock, [&] { return e->reached >= n; });
	return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned) {
	long n;
	{
		std::lock_guard<std::mutex> lock(mu);
		n = e->recorded;
	}
	return push(s, [=] {
		std::unique_lock<std::mutex> lock(mu);
		changed.wait(lock, [&] { return e->reached >= n; });
	});
}

CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b) {
	std::lock_guard<std::mutex> lock(mu);
	*ms = std::chrono::duration<float, std::milli>(b->at - a->at).count();
	return CUDA_SUCCESS;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
	return push(s, [=] { memmove((void *)to, (void *)from, n); });
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t n, CUstream s) { return cuMemcpyAsync(to, (CUdeviceptr)from, n, s); }
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream s) { return cuMemcpyAsync((CUdeviceptr)to, from, n, s); }

CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) {
	return push(s, [=] { memset((void *)p, v, n); });
}

CUresult cuLaunchHostFunc(CUstream s, CUhostFn f, void *data) {
	return push(s, [=] { f(data); });
}

// There are modules and no kernels.
CUresult cuModuleLoadDataEx(CUmodule *m, const void *, unsigned, CUjit_option *, void **) { *m = (CUmodule)1; return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule, const char *) { *f = (CUfunction)1; return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int *v, CUfunction_attribute, CUfunction) { *v = 1; return CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

CUresult cuStreamBeginCapture(CUstream s, CUstreamCaptureMode) {
	std::lock_guard<std::mutex> lock(mu);
	s->capture = new CUgraph_st{};
	return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream s, CUgraph *g) {
	std::lock_guard<std::mutex> lock(mu);
	*g = s->capture;
	s->capture = nullptr;
	return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *, size_t *n) { *n = g->nodes.size(); return CUDA_SUCCESS; }
CUresult cuGraphDestroy(CUgraph g) { delete g; return CUDA_SUCCESS; }
CUresult cuGraphExecDestroy(CUgraphExec g) { delete g; return CUDA_SUCCESS; }

CUresult cuGraphInstantiateWithFlags(CUgraphExec *x, CUgraph g, unsigned long long) {
	*x = new CUgraphExec_st{g->nodes};
	return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec g, CUstream s) {
	for (auto &f : g->nodes)
		push(s, f);
	return CUDA_SUCCESS;
}
}
