// NCCL between threads of one process, on streams of the fake driver. Like NCCL it compares
// nothing: ranks that don't match hang until they are aborted. A new communicator must not block,
// and its calls are in progress until its state was queried twice. One that is split from it must
// block, and its first calls wait for the other ranks to connect.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

enum { success = 0, invalid_argument = 4, invalid_usage = 5, remote_error = 6, in_progress = 7 };
enum { all_reduce, broadcast, all_gather, reduce_scatter, sending, receiving };

struct Id {
	char bytes[128];
};

struct Config {
	size_t size;
	unsigned magic, version;
	int blocking, cga_cluster_size;
};

struct Call {
	int kind;
	const char *src;
	char *dst;
	size_t count;
	int type, op, peer;
};

// Meeting is one operation of all ranks, or of two.
struct Meeting {
	std::map<int, Call> here;
	size_t needs;
	bool done = false;
};

typedef std::tuple<long, int, int> Key; // number, and sender and receiver or -1

struct World {
	int size;
	std::shared_ptr<World> split;
	std::map<int, struct Comm *> ranks;
	std::map<Key, std::shared_ptr<Meeting>> meetings;
};

struct Comm {
	std::shared_ptr<World> world;
	int rank;
	bool aborted = false;
	int polls = 0; // until the call in progress has ended
	bool blocking = false, called = false, gone = false;
	Comm *split = nullptr, **splitting = nullptr; // where the new one is stored
	long collectives = 0;
	std::map<int, long> sent, received;
};

// does reports whether a test has set a behavior in CISTERN_FAKE_NCCL: "stall" splits nothing;
// "clustered" and "unclustered" refuse the other; "none left" refuses to continue while there are
// communicators that were made since a stall began and are not destroyed.
static bool does(const char *what) {
	const char *set = getenv("CISTERN_FAKE_NCCL");
	return set && strcmp(set, what) == 0;
}

static std::mutex mu;
static int live, before; // communicators that were not destroyed: now, and before a stall
static std::condition_variable changed;
static std::map<std::string, std::shared_ptr<World>> worlds;
static thread_local int depth;
static thread_local std::vector<std::tuple<Comm *, CUstream, Call>> grouped;

static size_t bytes(int type) { return type == 9 ? 2 : type == 7 || type == 2 ? 4 : 8; }

// Wide represents every int64.
typedef long double Wide;

static Wide get(int type, const char *p) {
	switch (type) {
	case 2: { int32_t x; memcpy(&x, p, 4); return x; }
	case 4: { int64_t x; memcpy(&x, p, 8); return x; }
	case 7: { float x; memcpy(&x, p, 4); return x; }
	case 8: { double x; memcpy(&x, p, 8); return x; }
	default: { uint16_t h; memcpy(&h, p, 2); uint32_t b = (uint32_t)h << 16; float x; memcpy(&x, &b, 4); return x; }
	}
}

static void put(int type, char *p, Wide v) {
	switch (type) {
	case 2: { int32_t x = (int32_t)(int64_t)v; memcpy(p, &x, 4); return; } // sums wrap around
	case 4: { int64_t x = (int64_t)v; memcpy(p, &x, 8); return; }
	case 7: { float x = (float)v; memcpy(p, &x, 4); return; }
	case 8: { double x = (double)v; memcpy(p, &x, 8); return; }
	default: { float x = (float)v; uint32_t b; memcpy(&b, &x, 4); uint16_t h = (b + 0x8000) >> 16; memcpy(p, &h, 2); return; }
	}
}

static Wide reduced(std::map<int, Call> &here, size_t i, int type, int op) {
	Wide v = 0;
	for (auto &[rank, c] : here) {
		Wide x = get(type, c.src + i * bytes(type));
		v = rank == 0 ? x : op == 2 ? std::max(v, x) : op == 3 ? std::min(v, x) : v + x;
	}
	if (op == 4)
		v /= (Wide)here.size();
	return op == 4 && (type == 2 || type == 4) ? std::trunc(v) : v;
}

// finish does the work of all ranks, with the arguments of their calls.
static void finish(Meeting &m) {
	Call first = m.here.begin()->second;
	size_t n = first.count, size = bytes(first.type);
	std::vector<char> all;
	switch (first.kind) {
	case all_reduce:
	case reduce_scatter:
		all.resize(n * size * (first.kind == all_reduce ? 1 : m.here.size()));
		for (size_t i = 0; i * size < all.size(); i++)
			put(first.type, &all[i * size], reduced(m.here, i, first.type, first.op));
		for (auto &[rank, c] : m.here)
			memcpy(c.dst, all.data() + (first.kind == all_reduce ? 0 : rank * n * size), n * size);
		break;
	case all_gather:
		for (auto &[rank, c] : m.here)
			all.insert(all.end(), c.src, c.src + n * size);
		for (auto &[rank, c] : m.here)
			memcpy(c.dst, all.data(), all.size());
		break;
	case broadcast:
		all.assign(m.here[first.peer].src, m.here[first.peer].src + n * size);
		for (auto &[rank, c] : m.here)
			memcpy(c.dst, all.data(), all.size());
		break;
	default: {
		Call &from = m.here[0], &to = m.here[1];
		memmove(to.dst, from.src, to.count * size);
	}
	}
	m.done = true;
	changed.notify_all();
}

// run is a kernel. It joins the meetings of all calls, and waits until all are done.
static void run(Comm *c, std::vector<Call> calls) {
	std::unique_lock<std::mutex> lock(mu);
	auto w = c->world;
	std::vector<std::shared_ptr<Meeting>> at;
	if (c->aborted)
		return;
	for (auto &x : calls) {
		if (x.count == 0)
			continue;
		Key key{0, -1, -1};
		int as = c->rank;
		if (x.kind == sending)
			key = {c->sent[x.peer]++, c->rank, x.peer}, as = 0;
		else if (x.kind == receiving)
			key = {c->received[x.peer]++, x.peer, c->rank}, as = 1;
		else
			key = {c->collectives++, -1, -1};
		auto &m = w->meetings[key];
		if (!m) {
			m = std::make_shared<Meeting>();
			m->needs = as == c->rank && std::get<1>(key) < 0 ? w->size : 2;
		}
		at.push_back(m);
		m->here[as] = x;
		if (m->here.size() == m->needs) {
			finish(*m);
			w->meetings.erase(key);
		}
	}
	changed.wait(lock, [&] {
		return c->aborted || std::all_of(at.begin(), at.end(), [](auto &m) { return m->done; });
	});
	for (auto &m : at)
		if (!m->done)
			m->needs = 0; // so that no rank finishes it: this rank's memory may be reused
}

struct Kernel {
	Comm *comm;
	std::vector<Call> calls;
};

static int launch(Comm *c, CUstream s, std::vector<Call> calls) {
	typedef CUresult launching(CUstream, CUhostFn, void *);
	static launching *host = (launching *)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchHostFunc");
	std::unique_lock<std::mutex> lock(mu);
	if (!c->blocking)
		return invalid_usage;
	if (calls.size() == 1 && calls[0].kind <= reduce_scatter && calls[0].count > 0) {
		c->called = true;
		changed.notify_all();
		changed.wait(lock, [&] {
			return c->aborted || std::all_of(c->world->ranks.begin(), c->world->ranks.end(), [](auto &x) { return x.second->called; });
		});
	}
	if (c->aborted)
		return remote_error;
	// The Kernel is not freed, because graphs run it again.
	host(s, [](void *p) { auto k = (Kernel *)p; run(k->comm, k->calls); }, new Kernel{c, calls});
	return success;
}

static int call(Comm *c, CUstream s, Call x) {
	if (depth > 0) {
		grouped.emplace_back(c, s, x);
		return success;
	}
	return launch(c, s, {x});
}

extern "C" {

int ncclGetVersion(int *v) { *v = 22809; return success; }
const char *ncclGetLastError(Comm *) { return "the last error of the fake"; }

int ncclGetUniqueId(Id *id) {
	static int n;
	std::lock_guard<std::mutex> lock(mu);
	memset(id, ++n, sizeof *id);
	memcpy(id->bytes, &n, sizeof n);
	return success;
}

int ncclCommInitRankConfig(Comm **to, int size, Id id, int rank, Config *config) {
	if (config->magic != 0xcafebeef || config->blocking != 0 || config->size < 48 || config->version < 21800)
		return invalid_argument;
	std::lock_guard<std::mutex> lock(mu);
	if (does("stall"))
		before = live;
	if (does("none left") && live != before)
		return invalid_usage;
	live++;
	auto &w = worlds[std::string(id.bytes, sizeof id.bytes)];
	if (!w) {
		w = std::make_shared<World>();
		w->size = size;
	}
	auto c = new Comm{};
	c->world = w;
	c->rank = rank;
	w->ranks[rank] = c;
	*to = c;
	return in_progress;
}

int ncclCommSplit(Comm *from, int color, int key, Comm **to, Config *config) {
	if (config->magic != 0xcafebeef || config->blocking != 1 || config->size < 48 || config->version < 21800 || color != 0 || key != from->rank)
		return invalid_argument;
	if ((does("clustered") && config->cga_cluster_size == 0) || (does("unclustered") && config->cga_cluster_size != 0))
		return invalid_argument;
	std::lock_guard<std::mutex> lock(mu);
	auto &w = from->world->split;
	if (!w) {
		w = std::make_shared<World>();
		w->size = from->world->size;
	}
	live++;
	auto c = new Comm{};
	c->world = w;
	c->rank = key;
	c->blocking = true;
	w->ranks[key] = c;
	from->polls = 2;
	from->splitting = to;
	*to = nullptr;
	from->split = c;
	return success; // as NCCL does
}

int ncclCommGetAsyncError(Comm *c, int *state) {
	std::unique_lock<std::mutex> lock(mu);
	auto whole = [](World &w) { return w.ranks.size() == (size_t)w.size; };
	if ((c->splitting && does("stall")) || !whole(*c->world) || (c->splitting && !whole(*c->world->split)) || (c->polls > 0 && --c->polls > 0))
		*state = in_progress;
	else {
		*state = success;
		if (c->splitting)
			*c->splitting = c->split;
		c->splitting = nullptr;
	}
	return success;
}

int ncclCommFinalize(Comm *c) {
	std::lock_guard<std::mutex> lock(mu);
	if (c->blocking)
		return success;
	c->polls = 2;
	return in_progress;
}

// give counts a destroyed communicator. It is not freed, because kernels and graphs may still use
// it.
static int give(Comm *c) {
	if (c->gone)
		return invalid_usage;
	c->gone = true;
	live--;
	return success;
}

int ncclCommDestroy(Comm *c) {
	std::lock_guard<std::mutex> lock(mu);
	return give(c);
}

int ncclCommAbort(Comm *c) {
	std::lock_guard<std::mutex> lock(mu);
	c->aborted = true;
	if (c->splitting) // as NCCL does
		*c->splitting = c->split;
	changed.notify_all();
	return give(c);
}

int ncclGroupStart() { depth++; return success; }

int ncclGroupEnd() {
	if (depth == 0)
		return invalid_usage;
	if (--depth > 0 || grouped.empty())
		return success;
	std::vector<Call> calls;
	auto [c, s, first] = grouped[0];
	for (auto &[comm, stream, x] : grouped) {
		if (comm != c || stream != s)
			return invalid_usage;
		calls.push_back(x);
	}
	grouped.clear();
	return launch(c, s, calls);
}

int ncclAllReduce(const char *src, char *dst, size_t n, int type, int op, Comm *c, CUstream s) { return call(c, s, {all_reduce, src, dst, n, type, op, 0}); }
int ncclBroadcast(const char *src, char *dst, size_t n, int type, int root, Comm *c, CUstream s) { return call(c, s, {broadcast, src, dst, n, type, 0, root}); }
int ncclAllGather(const char *src, char *dst, size_t n, int type, Comm *c, CUstream s) { return call(c, s, {all_gather, src, dst, n, type, 0, 0}); }
int ncclReduceScatter(const char *src, char *dst, size_t n, int type, int op, Comm *c, CUstream s) { return call(c, s, {reduce_scatter, src, dst, n, type, op, 0}); }
int ncclSend(const char *src, size_t n, int type, int peer, Comm *c, CUstream s) { return call(c, s, {sending, src, nullptr, n, type, 0, peer}); }
int ncclRecv(char *dst, size_t n, int type, int peer, Comm *c, CUstream s) { return call(c, s, {receiving, nullptr, dst, n, type, 0, peer}); }
}
