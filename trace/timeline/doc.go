// Package timeline writes the activity of a program in the Trace Event Format, which
// ui.perfetto.dev, chrome://tracing and speedscope open: steps, layers, operations, copies and
// kernels on lanes, memory as counters.
//
//	tl, err := timeline.New(file)
//	memory := tl.Memory()
//	cache, err := memcache.New(dev, memcache.Config{Observer: memory})
//	memory.Watch(cache)
//	pool, err := transfer.New(dev, transfer.Config{Observer: tl.Transfer()})
//	stream, err := dev.NewStream(device.StreamOptions{Launching: tl.Launching})
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{
//		Cache: cache, Stream: stream, OnProfile: tl.Step, Starting: tl.Starting,
//	})
//	runtime, err := tensor.NewRuntime(cache, pool, stream, tensor.OnOperation(tl.Operation))
//	…
//	err = tl.Close()
//
// To use other observers too, combine them with memcache.Observers and transfer.Observers.
//
// # Lanes
//
// The program is a process of the trace, and each device is another. Two spans of a lane overlap
// only if one is inside the other. Other spans go to another lane of the same name with a number.
//
//	program   steps        from StartStep to End, with their figures
//	          layers       a module in a pass, "encoder.0 forward", from its first allocation or
//	                       operation to its last before another's; each part of a path is a span
//	          operations   from the call of an operation until it is queued, and launches that
//	                       belong to no operation
//	          allocator    driver calls, waits for pending frees, EmptyCache
//	          transfer     driver calls for pinned memory, waits for a loader
//	device    stream N           kernels, by the device's clock; a replay of a graph is one
//	          steps on stream N  each step's extent on the device, inside of its device time; the
//	                             kernels that were launched in it are inside
//	          stream N copies    copies, fills and batches of a transfer.Pool, by device time
//
// Layers come from the contexts of allocations and operations (memcache.WithModule), on the host,
// which runs ahead of the device. With several goroutines they alternate in one lane. The pass
// follows from the category of the context: activations are of the forward pass, gradients of the
// backward pass, and other categories of their neighbours' pass in the module. A copy ends when the
// pool detects its end, somewhat after the device has finished it. A kernel begins and ends at
// timed events of its own, which cost about as much as the launch.
//
// # Kernels
//
// An arrow leads from an operation to each kernel that it launched. The kernel's arguments are the
// operation's: its name ("operation"), its results and operands ("shapes", such as "float32[128,10]
// = float32[128,784], float32[10,784]"), its "module", "pass" and "step". A replay has instead the
// number of each of the graph's "operations", which have no times of their own. With
// tensor.OnOperation all kernels of tensor operations have these arguments. A program's own
// launches have an arrow, and have arguments if [Timeline.Operation] is called around them. The
// shape of memory outside of tensors is its number of elements, and of a list of tensors, such as
// an optimiser's, the shape of its first tensor.
//
// # Counters
//
// The counter "memory allocated" is the allocated bytes, at each allocation and free. "memory by
// category" is the same bytes by category. "memory active" and "memory reserved" need
// [Memory.Watch]. The counters of a second cache on a device of the same name end with "(2)". With
// one goroutine the allocated bytes are MemoryAllocated at that moment. With several they are the
// sum over one order of the events.
//
// # The file
//
// A goroutine of the timeline writes the events in batches, so that an allocation never waits for
// the file. Only whole events are written. If the program is killed, the file lacks its last batch
// and the closing bracket, which the format allows.
package timeline
