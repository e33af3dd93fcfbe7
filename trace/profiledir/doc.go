// Package profiledir writes a training's memory profiles into a folder:
//
//	dir, err := profiledir.New("profiles", profiledir.Options{Name: "my model"})
//	memory, copies := dir.Observers()
//	cache, err := memcache.New(dev, memcache.Config{Observer: memory})
//	pool, err := transfer.New(dev, transfer.Config{Observer: copies})
//	stream, err := dev.NewStream(device.StreamOptions{Launching: dir.Launching})
//	err = dir.Watch(cache)
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, Stream: stream,
//		Starting: dir.Starting, Holders: true, OnProfile: dir.OnProfile})
//	// Each step:
//	look := dir.Step(n)
//	ctx, step := profiler.StartStep(ctx, n)
//	ctx = look.Begin(ctx)
//	// ...
//	look.End()
//	step.End()
//	look.Write()
//	// At the end:
//	err = dir.Close()
//
// A program of package tensor passes dir.Operation to tensor.OnOperation, so that the timeline
// shows the operations too.
//
//	recording.jsonl.gz  all requests, for cistern verify and whatif (trace/record)
//	trace.json          the steps of Options.Steps as a timeline, for Perfetto (trace/timeline)
//	step-N.pb.gz        the holders of memory at the peak of step N, for go tool pprof (trace/heap)
//	heap.pb.gz          the holders of memory when Close is called
//	peak.pb.gz          the holders of memory at the peak of the program
//	snapshot.pickle     the blocks and the history, for PyTorch's viewers (trace/torchsnapshot)
//	report.html         the page of trace/report
//	oom/                the last four at the first request that ran out of memory
//
// The first two are written while the program runs. A nil Dir does nothing, so that a program can
// make the profiles optional without a condition at each call.
package profiledir
