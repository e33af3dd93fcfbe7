//go:build cuda

#include "shim.h"

#include <dlfcn.h>
#include <string.h>

int cistern_lt_open(cistern_lt *l) {
	const char *names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"};
	l->library = NULL;
	for (int i = 0; i < 3 && l->library == NULL; i++)
		l->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	if (l->library == NULL)
		return 0;
	struct {
		void **entry;
		const char *name;
	} entries[] = {
		{&l->create, "cublasLtCreate"}, {&l->destroy, "cublasLtDestroy"}, {&l->matmul, "cublasLtMatmul"},
		{&l->heuristic, "cublasLtMatmulAlgoGetHeuristic"},
		{&l->desc_create, "cublasLtMatmulDescCreate"}, {&l->desc_destroy, "cublasLtMatmulDescDestroy"},
		{&l->desc_set, "cublasLtMatmulDescSetAttribute"},
		{&l->layout_create, "cublasLtMatrixLayoutCreate"}, {&l->layout_destroy, "cublasLtMatrixLayoutDestroy"},
		{&l->layout_set, "cublasLtMatrixLayoutSetAttribute"},
		{&l->preference_create, "cublasLtMatmulPreferenceCreate"}, {&l->preference_destroy, "cublasLtMatmulPreferenceDestroy"},
		{&l->preference_set, "cublasLtMatmulPreferenceSetAttribute"},
	};
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
		*entries[i].entry = dlsym(l->library, entries[i].name);
		if (*entries[i].entry == NULL) {
			cistern_lt_close(l);
			return 0;
		}
	}
	return 1;
}

void cistern_lt_close(cistern_lt *l) {
	if (l->library != NULL)
		dlclose(l->library);
	l->library = NULL;
}

int cistern_lt_create(dev d, const cistern_lt *l, uint64_t *handle) {
	int r = cistern_bind(d);
	return r ? r : -((int (*)(void **))l->create)((void **)handle);
}

void cistern_lt_destroy(dev d, const cistern_lt *l, uint64_t handle) {
	if (cistern_bind(d) == CUDA_SUCCESS)
		((int (*)(void *))l->destroy)((void *)handle);
}

void cistern_lt_drop(const cistern_lt *l, cistern_lt_plan *p) {
	if (p->desc != NULL)
		((int (*)(void *))l->desc_destroy)(p->desc);
	void *layouts[] = {p->a, p->b, p->c};
	for (int i = 0; i < 3; i++)
		if (layouts[i] != NULL)
			((int (*)(void *))l->layout_destroy)(layouts[i]);
	memset(p, 0, sizeof *p);
}

// The numbers are those of cublasLt.h, where they never change.
enum {
	type_float = 0, type_bfloat16 = 14, compute_float = 68, compute_tf32 = 77,
	desc_transa = 3, desc_transb = 4, desc_epilogue = 7, desc_bias = 8,
	layout_batch = 5, layout_stride = 6,
	preference_workspace = 1, preference_reduction = 3, preference_alignment_a = 5, preference_alignment_b = 6, preference_alignment_c = 7, preference_alignment_d = 8,
	epilogue_bias = 4, // the epilogue of ReLU would turn NaN into 0
	reduction_float = 2, // add partial sums in float32 instead of the type of the result
};

// heuristic_result is cublasLtMatmulHeuristicResult_t.
typedef struct {
	uint64_t algorithm[8];
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
} heuristic_result;

typedef int set(void *, int, const void *, size_t);

static int make_layout(const cistern_lt *l, void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld, int64_t stride, int32_t batch) {
	int r = ((int (*)(void **, int, uint64_t, uint64_t, int64_t))l->layout_create)(layout, type, rows, cols, ld);
	if (r == 0 && batch > 1)
		r = ((set *)l->layout_set)(*layout, layout_batch, &batch, sizeof batch);
	if (r == 0 && batch > 1)
		r = ((set *)l->layout_set)(*layout, layout_stride, &stride, sizeof stride);
	return r;
}

// Row-major matrices are column-major ones transposed, so this is C' = op(B)' op(A)': the library's
// A is B. A column of its C is a row of ours, and the bias is added to each.
int cistern_lt_make(dev d, const cistern_lt *l, uint64_t handle, const cistern_gemm_call *g, const uint32_t alignment[3], cistern_lt_plan *p) {
	typedef int make_desc(void **, int, int);
	set *set_desc = (set *)l->desc_set, *set_preference = (set *)l->preference_set;
	memset(p, 0, sizeof *p);
	int r = cistern_bind(d);
	if (r != CUDA_SUCCESS)
		return r;
	void *preference = NULL;
	int transa = g->trans_b, transb = g->trans_a, type = g->bfloat16 ? type_bfloat16 : type_float;
	r = ((make_desc *)l->desc_create)(&p->desc, g->tf32 ? compute_tf32 : compute_float, type_float);
	if (r == 0)
		r = set_desc(p->desc, desc_transa, &transa, sizeof transa);
	if (r == 0)
		r = set_desc(p->desc, desc_transb, &transb, sizeof transb);
	int epilogue = epilogue_bias;
	if (r == 0 && g->bias)
		r = set_desc(p->desc, desc_epilogue, &epilogue, sizeof epilogue);
	if (r == 0 && g->bias)
		r = set_desc(p->desc, desc_bias, &g->bias, sizeof g->bias);
	if (r == 0)
		r = make_layout(l, &p->a, type, transa ? g->k : g->n, transa ? g->n : g->k, g->ldb, g->stride_b, g->batch);
	if (r == 0)
		r = make_layout(l, &p->b, type, transb ? g->m : g->k, transb ? g->k : g->m, g->lda, g->stride_a, g->batch);
	if (r == 0)
		r = make_layout(l, &p->c, type, g->n, g->m, g->ldc, g->stride_c, g->batch);
	if (r == 0)
		r = ((int (*)(void **))l->preference_create)(&preference);
	if (r == 0)
		r = set_preference(preference, preference_workspace, &g->workspace_bytes, sizeof g->workspace_bytes);
	uint32_t reduction = reduction_float;
	if (r == 0 && g->bfloat16)
		r = set_preference(preference, preference_reduction, &reduction, sizeof reduction);
	for (int i = 0; r == 0 && i < 4; i++) {
		static const int which[] = {preference_alignment_a, preference_alignment_b, preference_alignment_c, preference_alignment_d};
		static const int of[] = {1, 0, 2, 2};
		r = set_preference(preference, which[i], &alignment[of[i]], sizeof alignment[0]);
	}
	if (r == 0) {
		typedef int heuristic(void *, void *, void *, void *, void *, void *, void *, int, heuristic_result *, int *);
		heuristic_result found = {0};
		int n = 0;
		r = ((heuristic *)l->heuristic)((void *)handle, p->desc, p->a, p->b, p->c, p->c, preference, 1, &found, &n);
		if (r == 0 && n == 0)
			r = 15; // CUBLAS_STATUS_NOT_SUPPORTED
		if (r == 0)
			r = found.state;
		memcpy(p->algorithm, found.algorithm, sizeof p->algorithm);
	}
	if (preference != NULL)
		((int (*)(void *))l->preference_destroy)(preference);
	if (r != 0)
		cistern_lt_drop(l, p);
	return -r;
}

int cistern_lt_run(dev d, const cistern_lt *l, uint64_t handle, const cistern_gemm_call *g, const cistern_lt_plan *p) {
	typedef int matmul(void *, void *, const float *, const void *, void *, const void *, void *, const float *, const void *, void *, void *, void *,
		const uint64_t *, void *, size_t, void *);
	int r = cistern_bind(d);
	if (r != CUDA_SUCCESS)
		return r;
	if (g->bias)
		r = ((set *)l->desc_set)(p->desc, desc_bias, &g->bias, sizeof g->bias);
	float alpha = (float)g->alpha, beta = (float)g->beta;
	if (r == 0)
		r = ((matmul *)l->matmul)((void *)handle, p->desc, &alpha, (void *)g->b, p->a, (void *)g->a, p->b, &beta, (void *)g->c, p->c, (void *)g->c, p->c,
			p->algorithm, (void *)g->workspace, g->workspace_bytes, (void *)g->stream);
	return -r;
}
