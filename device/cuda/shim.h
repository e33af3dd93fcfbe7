// Calls that gorgonia.org/cu lacks or that must be cheap. Each is a single call from Go to C. It
// first binds the calling thread to the device's context, which takes one compare if it is bound
// already.
#pragma once
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
	CUcontext context;
	uint64_t serial; // never reused, so that no thread seems bound to a context that was released
	void *launch_ex; // cuLaunchKernelEx if the GPU has programmatic dependent launches, or NULL
} cistern_device;

typedef const cistern_device *dev;

int cistern_init(int *loaded, char *reason, int size);
int cistern_bind(dev d);
void cistern_unbind(void);
void cistern_error_name(int code, char *name, int size);

int cistern_alloc(dev d, size_t bytes, uint64_t *p);
int cistern_free(dev d, uint64_t p);
int cistern_mem_info(dev d, size_t *free, size_t *total);
int cistern_host_alloc(dev d, size_t bytes, uint64_t *p);
int cistern_host_free(dev d, uint64_t p);
int cistern_host_register(dev d, uint64_t p, size_t bytes);
int cistern_host_unregister(dev d, uint64_t p);
int cistern_host_pointer(dev d, uint64_t host, uint64_t *p);
int cistern_enable_peer(dev d, dev peer);

int cistern_granularity(dev d, int ordinal, size_t *bytes);
int cistern_reserve(dev d, size_t bytes, uint64_t *p);
int cistern_unreserve(dev d, uint64_t p, size_t bytes);
int cistern_map(dev d, int ordinal, uint64_t p, size_t bytes, const int *peers, int n);
int cistern_unmap(dev d, uint64_t p, size_t bytes);

int cistern_stream_create(dev d, int priority, uint64_t *s);
int cistern_stream_destroy(dev d, uint64_t s);
int cistern_stream_query(dev d, uint64_t s);
int cistern_stream_synchronize(dev d, uint64_t s);
int cistern_synchronize(dev d);

int cistern_event_create(dev d, int timed, uint64_t *e);
int cistern_event_destroy(dev d, uint64_t e);
int cistern_event_record(dev d, uint64_t e, uint64_t s);
int cistern_event_query(dev d, uint64_t e);
int cistern_event_synchronize(dev d, uint64_t e);
int cistern_event_elapsed(dev d, uint64_t start, uint64_t end, float *ms);
int cistern_stream_wait(dev d, uint64_t s, uint64_t e);

int cistern_h2d(dev d, uint64_t s, uint64_t to, uint64_t from, size_t bytes);
int cistern_d2h(dev d, uint64_t s, uint64_t to, uint64_t from, size_t bytes);
int cistern_d2d(dev d, uint64_t s, uint64_t to, uint64_t from, size_t bytes);
int cistern_batch(dev d, uint64_t s, uint64_t *to, uint64_t *from, size_t *bytes, size_t n);

typedef struct {
	uint64_t to, from;
	size_t to_pitch, from_pitch, width, height; // in bytes; height in rows
	bool to_host, from_host;
} cistern_rows;

int cistern_copy_2d(dev d, uint64_t s, const cistern_rows *r);
int cistern_memset(dev d, uint64_t s, uint64_t p, unsigned char value, size_t bytes);

int cistern_module_load(dev d, const void *image, uint64_t *m, char *log, int size);
int cistern_module_kernel(dev d, uint64_t m, const char *name, uint64_t *k);
int cistern_kernel_shared(dev d, uint64_t k, uint32_t bytes);
int cistern_module_unload(dev d, uint64_t m);

typedef struct {
	uint64_t kernel, stream;
	uint32_t grid[3], block[3], shared;
	uint32_t n;
	bool dependent; // the kernel itself waits for the previous one
} cistern_launch_config;

int cistern_launch(dev d, const cistern_launch_config *c, uint64_t *args);

// A range for the kernel copy_ranges, with addresses that kernels can use. It has at most 2 GiB.
typedef struct {
	uint64_t to, from, bytes;
} cistern_range;

int cistern_copy_ranges(dev d, uint64_t s, uint64_t kernel, cistern_range *r, size_t n);

// cistern_symbol returns an entry point of the driver by name, or NULL.
void *cistern_symbol(const char *name);

int cistern_capture_begin(dev d, uint64_t s);
int cistern_capture_end(dev d, uint64_t s, uint64_t *graph);
int cistern_graph_instantiate(dev d, uint64_t graph, uint64_t *exec, size_t *nodes);
int cistern_graph_launch(dev d, uint64_t exec, uint64_t s);
int cistern_graph_update(dev d, uint64_t exec, uint64_t graph, int *result);
int cistern_graph_destroy(dev d, uint64_t graph, uint64_t exec);

// The calls of cuBLAS return its own codes, as negative numbers.
#include "blas.h"
#include "lt.h"
int cistern_blas_create(dev d, const cistern_blas *b, uint64_t *handle);
void cistern_blas_destroy(dev d, const cistern_blas *b, uint64_t handle);
int cistern_gemm(dev d, const cistern_blas *b, uint64_t handle, const cistern_gemm_call *g);
int cistern_lt_create(dev d, const cistern_lt *l, uint64_t *handle);
void cistern_lt_destroy(dev d, const cistern_lt *l, uint64_t handle);
// alignment is the alignment in bytes of A, of B, and of C together with the bias if there is one.
int cistern_lt_make(dev d, const cistern_lt *l, uint64_t handle, const cistern_gemm_call *g, const uint32_t alignment[3], cistern_lt_plan *p);
int cistern_lt_run(dev d, const cistern_lt *l, uint64_t handle, const cistern_gemm_call *g, const cistern_lt_plan *p);
void cistern_lt_drop(const cistern_lt *l, cistern_lt_plan *p);

// The calls of NCCL return its own codes, as negative numbers.
#include "nccl.h"
int cistern_nccl_init(dev d, const cistern_nccl *l, const cistern_nccl_id *id, int rank, int size, uint64_t *comm);
int cistern_nccl_split(dev d, const cistern_nccl *l, uint64_t comm, int rank, int overlapped, uint64_t *split);
int cistern_nccl_run(dev d, const cistern_nccl *l, uint64_t comm, uint64_t stream, const cistern_nccl_call *calls, int n);
int cistern_nccl_finalize(dev d, const cistern_nccl *l, uint64_t comm);
int cistern_nccl_destroy(dev d, const cistern_nccl *l, uint64_t comm);
int cistern_nccl_abort(dev d, const cistern_nccl *l, uint64_t comm);
