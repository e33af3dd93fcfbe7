// Package timeline writes what a program does over time in the Trace Event Format, which
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
// Other observers go beside it with memcache.Observers and transfer.Observers.
//
// # Lanes
//
// The program is a process of the trace, each device another. No two spans of a lane overlap unless
// one is inside the other; a span that would is on another lane of the same name with a number.
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
//	          stream N copies    copies, fills and batches of a transfer.Pool, with their device time
//
// Layers come from the contexts of allocations and operations (memcache.WithModule), on the host,
// which runs ahead of the device. With several goroutines they alternate in one lane. The pass is
// the category of the context: activations are of the forward pass, gradients of the backward pass,
// and other categories of the pass that their neighbours in the module are of. A copy ends when the
// pool hears of its end, somewhat after the device is done. A kernel begins and ends at timed
// events of its own, which cost about as much as the launch.
//
// # Kernels
//
// An arrow leads from the operation that launched a kernel to the kernel. The kernel's arguments
// are the operation's: its name ("operation"), its results and operands ("shapes", such as
// "float32[128,10] = float32[128,784], float32[10,784]"), its "module", "pass" and "step". A replay
// has the number of each of the graph's "operations" instead, without times of their own. Kernels
// of tensor operations have all of this with tensor.OnOperation. A program's own launches have an
// arrow, and arguments where [Timeline.Operation] is called around them. Memory that is of no
// tensor has its number of elements in place of a shape, and a list of tensors, as of an optimiser,
// its first item.
//
// # Counters
//
// memory allocated is the bytes handed out, at each allocation and free, and memory by category the same bytes in parts.
// A second cache on devices of one name has "(2)" behind the names of its counters.
// memory active and memory reserved need [Memory.Watch]. With one goroutine allocated is MemoryAllocated at that moment; with several it is the sum in one order of what happened.
//
// # The file
//
// Whole events are written, in batches, by a goroutine of the timeline: nobody who allocates waits for the file. There is no
// need to close it: of a program that was killed the file lacks its last batch and the closing bracket, which the format allows.
package timeline
