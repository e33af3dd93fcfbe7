//go:build cuda

#include "shim.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>

enum { success = 0, oldest = 21800 };

// ncclConfig_t of 2.18. Later versions accept it and treat their additional fields as unset.
typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking, cga_cluster_size, min_ctas, max_ctas;
	const char *net_name;
	int split_share;
} config;

int cistern_nccl_open(const char *path, cistern_nccl *l, char *problem, int size) {
	const char *name = *path == 0 ? "libnccl.so.2" : path;
	l->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (l->library == NULL) {
		snprintf(problem, size, "%s", dlerror());
		return 0;
	}
	struct {
		void **entry;
		const char *name;
	} entries[] = {
		{&l->get_version, "ncclGetVersion"}, {&l->get_unique_id, "ncclGetUniqueId"}, {&l->comm_init, "ncclCommInitRankConfig"},
		{&l->comm_split, "ncclCommSplit"},
		{&l->async_error, "ncclCommGetAsyncError"}, {&l->last_error, "ncclGetLastError"}, {&l->finalize, "ncclCommFinalize"},
		{&l->destroy, "ncclCommDestroy"}, {&l->abort, "ncclCommAbort"},
		{&l->group_start, "ncclGroupStart"}, {&l->group_end, "ncclGroupEnd"}, {&l->all_reduce, "ncclAllReduce"},
		{&l->broadcast, "ncclBroadcast"}, {&l->all_gather, "ncclAllGather"}, {&l->reduce_scatter, "ncclReduceScatter"},
		{&l->send, "ncclSend"}, {&l->recv, "ncclRecv"},
	};
	*problem = 0;
	for (size_t i = 0; i < sizeof entries / sizeof *entries && *problem == 0; i++) {
		*entries[i].entry = dlsym(l->library, entries[i].name);
		if (*entries[i].entry == NULL)
			snprintf(problem, size, "%s has no %s; version 2.18 or later is needed", name, entries[i].name);
		else if (i == 0 && ((int (*)(int *))l->get_version)(&l->version) != success)
			snprintf(problem, size, "%s does not tell its version", name);
		else if (l->version < oldest)
			snprintf(problem, size, "%s is version %d.%d.%d; 2.18 or later is needed", name,
				l->version < 10000 ? l->version / 1000 : l->version / 10000,
				l->version < 10000 ? l->version / 100 % 10 : l->version / 100 % 100, l->version % 100);
	}
	return *problem == 0;
}

// NCCL may make other contexts current, so the thread counts as unbound after its calls.
static int leave(int result) {
	cistern_unbind();
	return -result;
}

int cistern_nccl_get_id(const cistern_nccl *l, cistern_nccl_id *id) {
	return leave(((int (*)(cistern_nccl_id *))l->get_unique_id)(id));
}

static config configured(int blocking, int overlapped) {
	config c = {sizeof c, 0xcafebeef, oldest, blocking, overlapped ? 0 : INT_MIN, INT_MIN, INT_MIN, NULL, INT_MIN};
	return c;
}

int cistern_nccl_init(dev d, const cistern_nccl *l, const cistern_nccl_id *id, int rank, int size, uint64_t *comm) {
	config c = configured(0, 0);
	int r = cistern_bind(d);
	if (r != CUDA_SUCCESS)
		return r;
	return leave(((int (*)(void **, int, cistern_nccl_id, int, config *))l->comm_init)((void **)comm, size, *id, rank, &c));
}

// Like all calls on comm this one does not block: NCCL returns success at once, and writes to split
// when the call ends. split must exist until then.
int cistern_nccl_split(dev d, const cistern_nccl *l, uint64_t comm, int rank, int overlapped, uint64_t *split) {
	config c = configured(1, overlapped);
	int r = cistern_bind(d);
	if (r != CUDA_SUCCESS)
		return r;
	r = ((int (*)(void *, int, int, void **, config *))l->comm_split)((void *)comm, 0, rank, (void **)split, &c);
	return leave(r == success ? cistern_nccl_in_progress : r);
}

int cistern_nccl_state(const cistern_nccl *l, uint64_t comm) {
	int state = success;
	int r = ((int (*)(void *, int *))l->async_error)((void *)comm, &state);
	return leave(r != success ? r : state);
}

void cistern_nccl_message(const cistern_nccl *l, uint64_t comm, char *message, int size) {
	const char *s = ((const char *(*)(void *))l->last_error)((void *)comm);
	snprintf(message, size, "%s", s == NULL ? "" : s);
}

static int one(const cistern_nccl *l, void *comm, void *stream, const cistern_nccl_call *c) {
	enum { all_reduce, broadcast, all_gather, reduce_scatter, barrier, send, recv };
	typedef int reducing(const void *, void *, size_t, int, int, void *, void *);
	typedef int gathering(const void *, void *, size_t, int, void *, void *);
	typedef int sending(const void *, size_t, int, int, void *, void *);
	const void *src = (const void *)c->src;
	void *dst = (void *)c->dst;
	switch (c->kind) {
	case all_reduce:
	case barrier:
		return ((reducing *)l->all_reduce)(src, dst, c->count, c->type, c->op, comm, stream);
	case broadcast:
		return ((reducing *)l->broadcast)(src, dst, c->count, c->type, c->peer, comm, stream);
	case all_gather:
		return ((gathering *)l->all_gather)(src, dst, c->count, c->type, comm, stream);
	case reduce_scatter:
		return ((reducing *)l->reduce_scatter)(src, dst, c->count, c->type, c->op, comm, stream);
	case send:
		return ((sending *)l->send)(src, c->count, c->type, c->peer, comm, stream);
	default:
		return ((sending *)l->recv)(dst, c->count, c->type, c->peer, comm, stream);
	}
}

// A group belongs to the thread that began it, so one call from Go begins and ends it.
int cistern_nccl_run(dev d, const cistern_nccl *l, uint64_t comm, uint64_t stream, const cistern_nccl_call *calls, int n) {
	int r = cistern_bind(d);
	if (r != CUDA_SUCCESS)
		return r;
	if (n > 1)
		r = ((int (*)(void))l->group_start)();
	if (r != success)
		return leave(r);
	for (int i = 0; i < n && r == success; i++)
		r = one(l, (void *)comm, (void *)stream, &calls[i]);
	if (n > 1) {
		int end = ((int (*)(void))l->group_end)();
		r = r == success ? end : r;
	}
	return leave(r);
}

static int end(dev d, void *call, uint64_t comm) {
	int r = cistern_bind(d);
	return r ? r : leave(((int (*)(void *))call)((void *)comm));
}

int cistern_nccl_finalize(dev d, const cistern_nccl *l, uint64_t comm) { return end(d, l->finalize, comm); }
int cistern_nccl_destroy(dev d, const cistern_nccl *l, uint64_t comm) { return end(d, l->destroy, comm); }
int cistern_nccl_abort(dev d, const cistern_nccl *l, uint64_t comm) { return end(d, l->abort, comm); }
