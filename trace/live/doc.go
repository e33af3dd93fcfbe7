// Package live shows a running program's device memory over HTTP, beside net/http/pprof:
//
//	h, err := live.New(live.Config{Cache: cache, Pool: pool})
//	defer h.Close()
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, OnProfile: h.Step})
//	http.Handle("/debug/cistern/", h)
//	expvar.Publish("cistern", h)
//
// It listens nowhere by itself, and registers nothing. The pages show names of modules and functions:
// serve them as net/http/pprof is served, on localhost or behind authentication. A request for another
// host than localhost, a loopback address, the address that it came to, or a name in Config.Hosts, gets
// status 403: otherwise a page of another site could read them in the browser of a user of this machine
// (DNS rebinding).
//
//	/debug/cistern/           an index: figures, a chart of the last five minutes and the latest steps
//	/debug/cistern/heap       who holds the memory, for go tool pprof (trace/heap); ?seconds=N: what changed meanwhile
//	/debug/cistern/peak       who held it at the peak, for go tool pprof
//	/debug/cistern/snapshot   the blocks and the history, for PyTorch's viewers and cistern (trace/torchsnapshot)
//	/debug/cistern/report     the page of trace/report
//	/debug/cistern/steps      the latest steps as JSON; as server-sent events for those who accept text/event-stream
//	/debug/cistern/events     the same events, and the state of the cache: events named "state"
//	/debug/cistern/stats      the cache's and the pool's statistics as JSON, under PyTorch's names,
//	                          and what graphs hold
//
// The addresses of memory are given only to those who ask with ?addresses=1; otherwise they are moved, all by the same
// distance, so that files still verify. A slow client holds no lock and holds up no step: what it asked for was copied before
// the first byte is sent, an event stream that falls behind is told how many steps it missed, and a client that does not take
// 32 KiB in 30 seconds is cut off. Four answers are made or sent at a time, and 64 clients may wait for events, and for
// heap?seconds; more are refused with status 503. What a page costs the program is the walk over the blocks of the cache, during
// which requests wait, some 50 ns a block; the history is copied without holding them up.
//
// A state is JSON with the figures of the index: time, since (when New was called), title, rank and
// world_size (of the latest step; 0 of 0 without ranks), allocated, peak, reserved, limit (0: the
// device's memory), graphs, retries, ooms and steps. Its categories and graph_shares have the bytes
// and blocks of each name. A watcher gets the state at once, and again when it has changed, at most
// twice a second. One sample serves all watchers, and without watchers none is taken. The sample of
// a large cache serves longer, 99 times as long as it took, so that requests wait at most 1 % of
// the time. After [Handler.Close] events are refused with status 503.
//
// A Handler shows one cache. With several ranks each rank's program has its own Handler, at an
// address of its own; the title of the index has the rank as soon as the profile of a step has one.
package live
