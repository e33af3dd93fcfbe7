// cuBLAS, opened when the program runs.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct {
	void *library;
	void *create, *destroy, *set_stream, *set_workspace, *set_math_mode, *sgemm, *dgemm, *sgemm_batched, *dgemm_batched, *gemm_ex, *gemm_ex_batched;
} cistern_blas;

typedef struct {
	uint64_t stream, workspace;
	size_t workspace_bytes;
	int float64, bfloat16, tf32, trans_a, trans_b;
	int m, n, k, lda, ldb, ldc;
	uint64_t a, b, c, bias; // bias: or 0
	double alpha, beta;
	int batch;
	int64_t stride_a, stride_b, stride_c;
} cistern_gemm_call;

int cistern_blas_open(const char *path, cistern_blas *b, char *problem, int size);
void cistern_blas_close(cistern_blas *b);
