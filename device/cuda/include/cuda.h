// CUDA 13's header changes the parameters of five functions that gorgonia.org/cu calls. The driver
// keeps the old entry points, and this header declares them under their names. `make cuda` puts
// this folder first (CGO_CFLAGS=-I...). With older headers it changes nothing.
#pragma once
#include_next <cuda.h>

#if CUDA_VERSION >= 13000
#undef cuMemAdvise
#undef cuMemPrefetchAsync
#undef cuGraphAddDependencies
#undef cuGraphGetEdges
#undef cuCtxCreate
#define cuCtxCreate cuCtxCreate_v2

CUresult CUDAAPI cuMemAdvise(CUdeviceptr p, size_t bytes, CUmem_advise advice, CUdevice device);
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr p, size_t bytes, CUdevice device, CUstream stream);
CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t n);
CUresult CUDAAPI cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *n);
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
#endif
