// Package timeline writes what a program does over time in the Trace Event Format, which ui.perfetto.dev, chrome://tracing and
// speedscope open: steps, layers, copies and kernels on lanes, memory as counters.
//
//	tl, err := timeline.New(file)
//	memory := tl.Memory()
//	cache, err := memcache.New(dev, memcache.Config{Observer: memory})
//	memory.Watch(cache)
//	pool, err := transfer.New(dev, transfer.Config{Observer: tl.Transfer()})
//	stream, err := dev.NewStream(device.StreamOptions{Launching: tl.Launching})
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, OnProfile: tl.Step})
//	…
//	err = tl.Close()
//
// Other observers go beside it with memcache.Observers and transfer.Observers.
//
// # Lanes
//
// The program is a process of the trace, each device another. No two spans of a lane overlap unless one is inside the other; what would is on
// another lane of the same name with a number.
//
//	program   steps        from StartStep to End, with their figures
//	          layers       from the first allocation of a module to its last before another module's; each part of a path is a span
//	          allocator    driver calls, waits for pending frees, EmptyCache
//	          transfer     driver calls for pinned memory, waits for a loader
//	device    stream N           kernels, by the device's clock
//	          stream N copies    copies, fills and batches of a transfer.Pool, with what they took on the device
//
// Layers are what the contexts of allocations say (memcache.WithModule), on the host, which runs ahead of the device. With
// several goroutines they alternate in one lane. A kernel does not know its context, so it has no layer. A copy ends when the pool hears of its end, somewhat
// after the device is done. A kernel begins and ends at timed events of its own, which cost about as much as the launch.
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
