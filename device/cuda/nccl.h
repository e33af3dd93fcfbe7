// NCCL, opened when the program runs.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct {
	void *library;
	int version; // 21800 is 2.18.0
	void *get_version, *get_unique_id, *comm_init, *comm_split, *async_error, *last_error, *finalize, *destroy, *abort;
	void *group_start, *group_end, *all_reduce, *broadcast, *all_gather, *reduce_scatter, *send, *recv;
} cistern_nccl;

typedef struct {
	int kind, type, op, peer; // kind as in package matching, the others as in NCCL
	uint64_t dst, src;
	size_t count;
} cistern_nccl_call;

typedef struct {
	char bytes[128];
} cistern_nccl_id;

enum { cistern_nccl_in_progress = 7 };

int cistern_nccl_open(const char *path, cistern_nccl *l, char *problem, int size);
int cistern_nccl_get_id(const cistern_nccl *l, cistern_nccl_id *id);
int cistern_nccl_state(const cistern_nccl *l, uint64_t comm);
void cistern_nccl_message(const cistern_nccl *l, uint64_t comm, char *message, int size);
