//go:build cuda

#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>

int cistern_blas_open(const char *path, cistern_blas *b, char *problem, int size) {
	const char *names[] = {path, NULL, NULL};
	if (*path == 0) {
		names[0] = "libcublas.so.13";
		names[1] = "libcublas.so.12";
		names[2] = "libcublas.so.11";
	}
	b->library = NULL;
	for (int i = 0; i < 3 && names[i] != NULL && b->library == NULL; i++) {
		b->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
		if (b->library == NULL && i == 0)
			snprintf(problem, size, "%s", dlerror());
	}
	if (b->library == NULL)
		return 0;
	struct {
		void **entry;
		const char *name;
	} entries[] = {
		{&b->create, "cublasCreate_v2"}, {&b->destroy, "cublasDestroy_v2"}, {&b->set_stream, "cublasSetStream_v2"},
		{&b->set_workspace, "cublasSetWorkspace_v2"}, {&b->set_math_mode, "cublasSetMathMode"},
		{&b->sgemm, "cublasSgemm_v2"}, {&b->dgemm, "cublasDgemm_v2"},
		{&b->sgemm_batched, "cublasSgemmStridedBatched"}, {&b->dgemm_batched, "cublasDgemmStridedBatched"},
		{&b->gemm_ex, "cublasGemmEx"}, {&b->gemm_ex_batched, "cublasGemmStridedBatchedEx"},
	};
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
		*entries[i].entry = dlsym(b->library, entries[i].name);
		if (*entries[i].entry == NULL) {
			snprintf(problem, size, "the library has no %s", entries[i].name);
			cistern_blas_close(b);
			return 0;
		}
	}
	return 1;
}

void cistern_blas_close(cistern_blas *b) {
	if (b->library != NULL)
		dlclose(b->library);
	b->library = NULL;
}

int cistern_blas_create(dev d, const cistern_blas *b, uint64_t *handle) {
	int r = cistern_bind(d);
	return r ? r : -((int (*)(void **))b->create)((void **)handle);
}

void cistern_blas_destroy(dev d, const cistern_blas *b, uint64_t handle) {
	if (cistern_bind(d) == CUDA_SUCCESS)
		((int (*)(void *))b->destroy)((void *)handle);
}

// Row-major matrices are column-major ones transposed, so this is C' = op(B)' op(A)'.
int cistern_gemm(dev d, const cistern_blas *b, uint64_t handle, const cistern_gemm_call *g) {
	enum { none = 0, transposed = 1, default_math = 0, tf32_math = 3, sums_in_full = 16, type_bfloat16 = 14, compute_float = 68, default_algorithm = -1 };
	void *h = (void *)handle;
	int r = cistern_bind(d);
	if (r != CUDA_SUCCESS)
		return r;
	r = ((int (*)(void *, void *))b->set_stream)(h, (void *)g->stream);
	if (r == 0) // setting the stream has reset the workspace
		r = ((int (*)(void *, void *, size_t))b->set_workspace)(h, (void *)g->workspace, g->workspace_bytes);
	if (r == 0)
		r = ((int (*)(void *, int))b->set_math_mode)(h, g->bfloat16 ? sums_in_full : g->tf32 ? tf32_math : default_math);
	if (r != 0)
		return -r;
	int tb = g->trans_b ? transposed : none, ta = g->trans_a ? transposed : none;
	float alpha = (float)g->alpha, beta = (float)g->beta;
	if (g->batch > 1 && g->bfloat16) {
		typedef int gemm(void *, int, int, int, int, int, const float *, const void *, int, int, long long, const void *, int, int, long long,
			const float *, void *, int, int, long long, int, int, int);
		return -((gemm *)b->gemm_ex_batched)(h, tb, ta, g->n, g->m, g->k, &alpha, (void *)g->b, type_bfloat16, g->ldb, g->stride_b,
			(void *)g->a, type_bfloat16, g->lda, g->stride_a, &beta, (void *)g->c, type_bfloat16, g->ldc, g->stride_c, g->batch,
			compute_float, default_algorithm);
	}
	if (g->bfloat16) {
		typedef int gemm(void *, int, int, int, int, int, const float *, const void *, int, int, const void *, int, int,
			const float *, void *, int, int, int, int);
		return -((gemm *)b->gemm_ex)(h, tb, ta, g->n, g->m, g->k, &alpha, (void *)g->b, type_bfloat16, g->ldb, (void *)g->a, type_bfloat16, g->lda,
			&beta, (void *)g->c, type_bfloat16, g->ldc, compute_float, default_algorithm);
	}
	if (g->batch > 1 && g->float64) {
		typedef int gemm(void *, int, int, int, int, int, const double *, const void *, int, long long, const void *, int, long long,
			const double *, void *, int, long long, int);
		return -((gemm *)b->dgemm_batched)(h, tb, ta, g->n, g->m, g->k, &g->alpha, (void *)g->b, g->ldb, g->stride_b,
			(void *)g->a, g->lda, g->stride_a, &g->beta, (void *)g->c, g->ldc, g->stride_c, g->batch);
	}
	if (g->batch > 1) {
		typedef int gemm(void *, int, int, int, int, int, const float *, const void *, int, long long, const void *, int, long long,
			const float *, void *, int, long long, int);
		return -((gemm *)b->sgemm_batched)(h, tb, ta, g->n, g->m, g->k, &alpha, (void *)g->b, g->ldb, g->stride_b,
			(void *)g->a, g->lda, g->stride_a, &beta, (void *)g->c, g->ldc, g->stride_c, g->batch);
	}
	if (g->float64) {
		typedef int gemm(void *, int, int, int, int, int, const double *, const void *, int, const void *, int,
			const double *, void *, int);
		return -((gemm *)b->dgemm)(h, tb, ta, g->n, g->m, g->k, &g->alpha, (void *)g->b, g->ldb, (void *)g->a, g->lda,
			&g->beta, (void *)g->c, g->ldc);
	}
	typedef int gemm(void *, int, int, int, int, int, const float *, const void *, int, const void *, int,
		const float *, void *, int);
	return -((gemm *)b->sgemm)(h, tb, ta, g->n, g->m, g->k, &alpha, (void *)g->b, g->ldb, (void *)g->a, g->lda, &beta,
		(void *)g->c, g->ldc);
}
