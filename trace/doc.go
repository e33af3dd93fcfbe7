// Package trace tells what a program does with device memory: OpenTelemetry spans and metrics of caches and
// copies, and a profile of each training step.
//
// A [Tracer] sits between the program's OpenTelemetry providers and the caches and pools, as their observer:
//
//	tracer, err := trace.New(trace.Config{AllEvery: 100})
//	cache, err := memcache.New(dev, memcache.Config{Observer: tracer.Memory()})
//	pool, err := transfer.New(dev, transfer.Config{Observer: tracer.Transfer()})
//	defer tracer.Close()
//
// Only the API of OpenTelemetry is used. A program that wants to see something installs an SDK; without
// one nothing is made, and nothing has to be taken out.
//
// # Spans
//
// An operation gets a span if the context that it is called with has a recording span, and if the [Detail]
// says so: by default driver calls, waits for pending frees and copies, and not each allocation. So a program
// starts a span of its own around everything, as examples/mnist does. With [All] for the whole program, operations
// without any parent are recorded, too, each as a trace of its own.
//
// Without a recording span nothing is allocated on the Go heap, and the two calls of an allocation and its free together
// cost 10 to 30 ns more. The span of a copy ends when the device has finished the copy. Blocks are named by their serials; an address never appears.
//
// A block whose allocation has a span has one of its free, too, wherever it is freed: under the span in the context of the
// free, with a link to the allocation's span, or else under the allocation's span. For that the span contexts of up to
// 65,536 blocks are kept until they are freed.
//
//	memcache.alloc, memcache.free                             All
//	memcache.driver_alloc, memcache.driver_free               Slow
//	memcache.synchronize, memcache.empty_cache                Slow
//	transfer.h2d, .d2h, .d2d, .fill, .batch, .launch, .next   Slow
//	transfer.pinned_alloc, .pinned_free                       Slow
//	transfer.register, .unregister                            Slow
//	step                                                      Steps
//
// An allocation that fails is a span with an error at All, and at Slow the event "memcache.alloc.failed" of
// the span that it happened in. [Tracer.Counts] tells how complete a trace is.
//
// # Metrics
//
// [Tracer.Watch] and [Tracer.WatchPool] make the statistics of a cache and a pool metrics that are read when a
// reader collects. Two histograms, cistern.device.allocation.duration and cistern.transfer.duration, are
// recorded while something reads them; they count failures by error.type. Several collections at once are
// fine; so is a cache that is closed.
//
// # Steps
//
// A [Profiler] makes each training step a [StepProfile]: bytes allocated at the start, at the end and at the
// most, cache hits, bytes copied, time on the host and on the device. With a Tracer a step is a span, too,
// and its figures are attributes.
//
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, Pool: pool, Stream: stream, Tracer: tracer})
//	for n := range steps {
//		ctx, step := profiler.StartStep(ctx, n)
//		err := train(ctx)
//		step.Fail(err) // unless it is nil
//		step.End()
//	}
//	err = profiler.Flush(ctx)
//	err = profiler.Table(os.Stdout)
//
// A step that failed is apart from the others: it is in no mean. "defer step.End()" notices a step that panics. Steps may
// overlap and nest; then the figures of the whole cache are those of all of them, and the own ones, of the blocks
// that were allocated with a step's context, are the step's.
//
// Steps don't wait for the device. Its time comes from two timed events on the compute stream, which are read
// when they are complete, at the end of a later step or in [Profiler.Flush]; only then does a step's span
// end, with the times of the step itself. A program that exits without Flush or Close loses the last ones.
package trace
