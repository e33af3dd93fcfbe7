// cuBLASLt: the library beneath cuBLAS. A product is planned once, and may add a bias.
#pragma once
#include "blas.h"

typedef struct {
	void *library; // or NULL
	void *create, *destroy, *matmul, *heuristic;
	void *desc_create, *desc_destroy, *desc_set, *layout_create, *layout_destroy, *layout_set, *preference_create, *preference_destroy, *preference_set;
} cistern_lt;

// cistern_lt_plan is the plan of one kind of product. It belongs to one handle.
typedef struct {
	void *desc, *a, *b, *c;
	uint64_t algorithm[8];
} cistern_lt_plan;

// cistern_lt_open finds the version that cuBLAS has loaded.
int cistern_lt_open(cistern_lt *l);
void cistern_lt_close(cistern_lt *l);
