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
// A block whose allocation has a span has one of its free, too, wherever it is freed, with a link
// to the allocation's span: under the span in the context of the free. A free without a context is
// under the step of the allocation while that runs, and later under the span around the step, whose
// sampling it shares; of an allocation outside of steps it is under the same span, while that is
// open. Without such a span it is a trace of its own. For that up to 65,536 blocks are kept until
// they are freed.
//
//	cistern.memory.alloc, .free                                   All
//	cistern.memory.driver_alloc, .driver_free                     Slow
//	cistern.memory.synchronize, .empty_cache                      Slow
//	cistern.transfer.h2d, .d2h, .d2d, .fill, .batch, .launch      Slow
//	cistern.loader.next                                           Slow
//	cistern.collective.all_reduce, .broadcast, .group, …          Slow
//	cistern.pinned.alloc, .free, .register, .unregister           Slow
//	cistern.step, cistern.step.device                             Steps
//
// The spans of allocations and frees say what the memory is for, with the memcache.Label of their context: module, category,
// step, and tags. Steps say which GPU they ran on, with the hw.id by which agents of the machine know it.
//
// Collective operations are observed by a [Communicator], which stands in the place of the program's own. Their spans begin and end when the device did,
// so that the waiting for other ranks is in them, and have bytes, bandwidth and bus bandwidth as NCCL's tests count them, rank and world size.
//
// Where several ranks train, Config says which one a Tracer is of: its spans, metrics and log records have cistern.rank and cistern.world_size. Profiles of
// steps, their table and the page of trace/report have the rank, too; a Profiler with a Communicator has it of that.
//
// An allocation that fails is a span with an error at All, and at Slow the event "cistern.memory.alloc.failed" of
// the span that it happened in. [Tracer.Counts] tells how complete a trace is.
//
// # Traces
//
// A step is a trace of its own, with all that happens in it; a step inside of another is part of
// the outer one's trace. So a backend gets a trace when a step is complete, and a sampler decides
// for each step: sdktrace.TraceIDRatioBased(0.1), also inside of sdktrace.ParentBased, keeps a
// tenth of the steps, whole. The run is a trace, too, of what is in no step. The span of a step
// links to the span that it was started in, the run's. That one links to the steps that are
// sampled: to the last 128, unless the program or OTEL_SPAN_LINK_COUNT_LIMIT sets another limit of
// the SDK. A backend finds the others by their links to the run.
//
// The copies of a loader (package transfer/loader) are in the step that takes their batch, with the
// times at which they were made, during the steps before.
//
// With a Communicator the steps of all ranks that have the same number are one trace, if the
// provider has an [IDGenerator]. Each rank computes the trace's id from the communicator's id and
// the step's number. The step of each rank is a root of the trace, so that all ranks sample the
// same steps.
//
// Where the collector is slow or gone, training goes on, and memory stays bounded:
// sdktrace.BatchSpanProcessor drops what its queue has no space for. [Tracer.Counts] shows how many
// spans that are; errors of the exporter go to OpenTelemetry's error handler
// (otel.SetErrorHandler).
//
// # Metrics
//
// [Tracer.Watch], [Tracer.WatchPool] and [Tracer.WatchOffload] make the statistics of a cache, a
// pool and an offloader metrics that are read when a reader collects. Histograms,
// cistern.device.allocation.duration, cistern.transfer.duration, of a Profiler's steps
// cistern.step.duration, cistern.step.data.wait_time (in a loader's Next, for data, by calls with
// the step's context; of steps that call it) and cistern.step.memory.peak, and of a Communicator
// cistern.collective.duration and .bus_bandwidth, and its counter cistern.collective.io, are
// recorded while something reads them; they count failures by error.type. Gauges of the last step
// that is complete are cistern.step.memory.last_peak, and cistern.step.device.utilization: BusyTime
// by DeviceTime of its StepProfile, if it has both.
//
// The buckets of cistern.step.memory.peak are so narrow, 15 to each power of two from 1 KiB to 512
// GiB, that quantiles which Prometheus works out of them are within 5 % of the truth, which takes
// 440 series of a device. A program that exports to something that has exponential histograms
// chooses these by a view of its SDK.
//
// Several collections at once are fine; so is a cache that is closed. What is of a GPU has the
// attribute hw.id, by which it joins the metrics hw.gpu.* of an agent.
//
// # Log
//
// A request that runs out of memory, after everything that a cache does about it, is the log event [EventOutOfMemory], with
// what was asked for, by whom, and where the memory is. It needs no span; if there is one, the record names it.
//
// # Go's execution tracer
//
// While runtime/trace runs, steps are tasks of it, and the operations of Slow that a goroutine waits for are regions.
//
// # Steps
//
// A [Profiler] makes each training step a [StepProfile]: bytes allocated at the start, at the end and at the
// most, cache hits, bytes copied, time on the host and on the device. With a Tracer a step is a span, too,
// and its figures are attributes.
//
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, Pool: pool, Stream: stream, Tracer: tracer})
//	defer profiler.Close()
//	for n := range steps {
//		ctx, step := profiler.StartStep(ctx, n+1) // 0 is the step of what belongs to none
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
// when they are complete, by a goroutine of the profiler or in [Profiler.Flush]; only then does a step's span
// end, with the times of the step itself, and below it the span of the device's part, with the device's. Where the device
// knows, its busy time is apart: a stream that waits for the host is not at work. Where it doesn't, as on GPUs, a [KernelTimer]
// finds out by two more events around each kernel, which cost about as much as the launch. A program that exits without Flush
// or Close loses the last steps.
//
// What is copied for a step counts with it whenever it was copied: a loader uploads a batch during the steps before the one
// that takes it.
package trace
