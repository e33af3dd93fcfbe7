// Package trace shows what a program does with device memory. It makes OpenTelemetry spans and
// metrics of caches and copies, and a profile of each training step.
//
// A [Tracer] connects the program's OpenTelemetry providers with its caches and pools, which take
// it as their observer:
//
//	tracer, err := trace.New(trace.Config{AllEvery: 100})
//	cache, err := memcache.New(dev, memcache.Config{Observer: tracer.Memory()})
//	pool, err := transfer.New(dev, transfer.Config{Observer: tracer.Transfer()})
//	defer tracer.Close()
//
// A program of package tensor passes the observers to tensor.Open, by tensor.CacheConfig and
// tensor.PoolConfig; package trace/telemetry has the whole program.
//
// The package uses only the API of OpenTelemetry. A program that wants the spans and metrics
// installs an SDK. Without one nothing is made, and the code above can stay.
//
// # Spans
//
// An operation gets a span if its context has a recording span and the [Detail] includes the
// operation. By default that is driver calls, waits for pending frees and copies, but not each
// allocation. A program therefore starts a span of its own around everything, as examples/mnist
// does. If the whole program runs with [All], operations without a parent are recorded too, each as
// a trace of its own.
//
// Without a recording span nothing is allocated on the Go heap, and an allocation and its free
// together cost 10 to 30 ns more. The span of a copy ends when the device has finished the copy.
// Spans identify blocks by serial and never contain an address.
//
// If the allocation of a block has a span, its free gets one too, with a link to the allocation's
// span. The parent of a free's span is the recording span in the free's own context. A free without
// a context belongs to the step of the allocation while that step runs, and afterwards to the span
// around the step, including that span's sampling decision. If the allocation was outside of steps,
// the parent is the parent of the allocation while that is open. A free without any such parent is
// a trace of its own. For these links up to 65,536 blocks are tracked until they are freed.
//
//	cistern.memory.alloc, .free                                   All
//	cistern.memory.driver_alloc, .driver_free                     Slow
//	cistern.memory.synchronize, .empty_cache, .wait               Slow
//	cistern.transfer.h2d, .d2h, .d2d, .fill, .batch, .launch      Slow
//	cistern.loader.next                                           Slow
//	cistern.collective.all_reduce, .broadcast, .group, …          Slow
//	cistern.pinned.alloc, .free, .register, .unregister           Slow
//	cistern.step, cistern.step.device                             Steps
//
// The spans of allocations and frees have attributes from the memcache.Label of their context:
// module, category, step and tags. The spans of steps have the hw.id of their GPU, which agents of
// the machine use too.
//
// Collective operations are observed by a [Communicator], which wraps the program's own. Their
// spans begin and end with the operation on the device, so they include the wait for other ranks.
// Their attributes are bytes, bandwidth and bus bandwidth as NCCL's tests count them, rank and
// world size.
//
// If several ranks train, Config has the rank of a Tracer. Its spans, metrics and log records then
// have cistern.rank and cistern.world_size. Profiles of steps, their table and the page of
// trace/report have the rank too. A Profiler with a Communicator takes the rank from the
// Communicator.
//
// An allocation that fails has a span with an error at All. At Slow it is the event
// "cistern.memory.alloc.failed" of the span around it. [Tracer.Counts] reports how complete a trace
// is.
//
// # Traces
//
// Each step is a trace of its own, with everything that happens in the step. A step inside of
// another step is part of the outer one's trace. A backend therefore gets a trace when a step is
// complete, and a sampler decides for each step: sdktrace.TraceIDRatioBased(0.1), also inside of
// sdktrace.ParentBased, keeps a tenth of the steps, whole. Operations outside of steps are in the
// trace of the run. The span of a step links to the span in which it was started, which is the
// run's. The run's span links to the sampled steps, but only to the last 128 unless the program or
// OTEL_SPAN_LINK_COUNT_LIMIT sets another limit of the SDK. A backend finds the others by their
// links to the run.
//
// The copies of a loader (package transfer/loader) are in the step that takes their batch, with the
// times at which they were made, which are during earlier steps.
//
// With a Communicator the steps of all ranks that have the same number are one trace, if the
// provider has an [IDGenerator]. Each rank computes the trace's id from the communicator's id and
// the step's number. The step of each rank is a root of the trace, so that all ranks sample the
// same steps.
//
// If the collector is slow or unreachable, training goes on and memory stays bounded:
// sdktrace.BatchSpanProcessor drops spans when its queue is full. [Tracer.Counts] helps to find the
// number of dropped spans. Errors of the exporter go to OpenTelemetry's error handler
// (otel.SetErrorHandler).
//
// # Metrics
//
// [Tracer.Watch], [Tracer.WatchPool] and [Tracer.WatchOffload] export the statistics of a cache, a
// pool and an offloader as metrics. The statistics are read when a reader collects. The following
// metrics are recorded as things happen, while something reads them. Failures count in the
// histograms with the attribute error.type.
//
//	cistern.device.allocation.duration  driver allocations
//	cistern.transfer.duration           a pool's copies and launches, with their waits
//	cistern.step.duration               a Profiler's steps
//	cistern.step.data.wait_time         time of a step in a loader's Next
//	cistern.step.memory.peak            the peaks of steps
//	cistern.step.memory.last_peak       a gauge of the last complete step
//	cistern.step.device.utilization     the same: its BusyTime by its DeviceTime
//	cistern.collective.duration         a Communicator's operations
//	cistern.collective.bus_bandwidth    the same
//	cistern.collective.io               the same: a counter of their bytes
//
// A step has a wait time if it calls a loader's Next with its context. It has a utilization if its
// StepProfile has both times.
//
// cistern.step.memory.peak has 15 buckets for each power of two from 1 KiB to 512 GiB, so that the
// quantiles that Prometheus computes are within 5 % of the truth. This takes 440 series of a
// device. A program that exports to a backend with exponential histograms can choose these by a
// view of its SDK.
//
// Several collections may run at once, and a cache may be closed while it is watched. The metrics
// of a GPU have the attribute hw.id, by which they join the metrics hw.gpu.* of an agent.
//
// # Log
//
// A request that runs out of memory, after every retry of the cache, is the log event
// [EventOutOfMemory]. The record has the requested size, the label of the request and the state of
// the memory. It needs no span. If there is one, the record refers to it.
//
// # Go's execution tracer
//
// While runtime/trace runs, steps are its tasks. The operations of Slow that block a goroutine are
// its regions.
//
// # Steps
//
// A [Profiler] makes a [StepProfile] of each training step: bytes allocated at the start, at the
// end and at the peak, cache hits, bytes copied, and time on the host and on the device. With a
// Tracer a step is also a span, with these figures as attributes.
//
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{
//		Cache: cache, Pool: pool, Stream: stream, Tracer: tracer,
//	})
//	defer profiler.Close()
//	for n := range steps {
//		ctx, step := profiler.StartStep(ctx, n+1) // from 1 on, because 0 means no step
//		err := train(ctx)
//		step.Fail(err) // unless it is nil
//		step.End()
//	}
//	err = profiler.Flush(ctx)
//	err = profiler.Table(os.Stdout)
//
// A failed step is kept apart from the others and is in no mean. "defer step.End()" notices a step
// that panics. Steps may overlap and nest. The figures of the whole cache are then those of all the
// steps that are open. The figures named Own, of the blocks that were allocated with a step's
// context, are the step's.
//
// Steps don't wait for the device. The device time comes from two timed events on the compute
// stream. They are read when they are complete, by a goroutine of the profiler or in
// [Profiler.Flush]. Only then does a step's span end, with the times of the step itself. The span
// of the device's part is below it and has the device's times. Busy time is separate, because a
// stream that waits for the host does no work. Some devices measure it themselves. For the others,
// such as GPUs, a [KernelTimer] records two more events around each kernel, which cost about as
// much as the launch. A program that exits without Flush or Close loses the last steps.
//
// Bytes copied for a step count in that step, whenever they were copied: a loader uploads a batch
// during the steps before the one that takes it.
package trace
