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
//	/debug/cistern/           an index, with the latest steps as they end
//	/debug/cistern/heap       who holds the memory, for go tool pprof (trace/heap); ?seconds=N: what changed meanwhile
//	/debug/cistern/peak       who held it at the peak, for go tool pprof
//	/debug/cistern/snapshot   the blocks and the history, for PyTorch's viewers and cistern (trace/torchsnapshot)
//	/debug/cistern/report     the page of trace/report
//	/debug/cistern/steps      the latest steps as JSON; as server-sent events for those who accept text/event-stream
//	/debug/cistern/stats      the cache's and the pool's statistics as JSON, under PyTorch's names,
//	                          and what graphs hold
//
// The addresses of memory are given only to those who ask with ?addresses=1; otherwise they are moved, all by the same
// distance, so that files still verify. A slow client holds no lock and holds up no step: what it asked for was copied before
// the first byte is sent, an event stream that falls behind is told how many steps it missed, and a client that does not take
// 32 KiB in 30 seconds is cut off. Four answers are made or sent at a time, and 64 clients may wait for events, and for
// heap?seconds; more are refused with status 503. What a page costs the program is the walk over the blocks of the cache, during
// which requests wait, some 50 ns a block; the history is copied without holding them up.
package live
