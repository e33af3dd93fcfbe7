// Package live serves the device memory of a running program over HTTP, beside net/http/pprof:
//
//	h, err := live.New(live.Config{Cache: cache, Pool: pool})
//	defer h.Close()
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, OnProfile: h.Step})
//	http.Handle("/debug/cistern/", h)
//	expvar.Publish("cistern", h)
//
// A Handler opens no port and registers nothing by itself. The pages contain names of modules and
// functions, so they should be served as net/http/pprof is: on localhost or behind authentication.
// The host of a request must be localhost, a loopback address, the address of the connection, or a
// name in Config.Hosts. Others get status 403, so that a page of another site can't read the pages
// in the browser of a user of this machine (DNS rebinding).
//
//	/debug/cistern/           an index: figures, a chart of five minutes, the latest steps
//	/debug/cistern/heap       the holders of the memory, for go tool pprof (trace/heap);
//	                          ?seconds=N: the changes within N seconds
//	/debug/cistern/peak       the holders at the peak, for go tool pprof
//	/debug/cistern/snapshot   the blocks and the history, for PyTorch's viewers and cistern
//	                          (trace/torchsnapshot)
//	/debug/cistern/report     the page of trace/report
//	/debug/cistern/steps      the latest steps as JSON; as server-sent events if the request
//	                          accepts text/event-stream
//	/debug/cistern/events     the same events, and the state of the cache: events named "state"
//	/debug/cistern/stats      the cache's and the pool's statistics as JSON, under PyTorch's
//	                          names, and the memory of graphs
//
// Addresses of memory are included only with ?addresses=1. Otherwise they are all moved by the same
// distance, so that files still verify.
//
// A slow client holds no lock and delays no step. The data of an answer is copied before its first
// byte is sent. An event stream that falls too far behind reports how many steps it missed. A
// client that does not read 32 KiB in 30 seconds is disconnected. The Handler makes or sends four
// answers at a time. 64 clients may wait for events, and 64 for heap?seconds. More get status 503.
// A page costs the program a walk over the blocks of the cache, some 50 ns a block, during which
// requests wait. The history is copied without blocking requests.
//
// A state is JSON with the figures of the index: time, since (when New was called), title, rank and
// world_size (of the latest step; 0 of 0 without ranks), allocated, peak, reserved, limit (0: the
// device's memory), graphs, retries, ooms and steps. Its categories and graph_shares have the bytes
// and blocks of each name. A client gets the state at once, and again when it has changed, at most
// twice a second. All clients share one sample, and without clients none is taken. A sample is used
// for at least 99 times as long as it took, so that requests wait at most 1 % of the time even with
// a large cache. After [Handler.Close] events get status 503.
//
// A Handler serves one cache. With several ranks each rank's program has its own Handler, at an
// address of its own. The title of the index has the rank when a profiled step has one.
package live
