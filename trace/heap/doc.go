// Package heap writes who holds device memory as a pprof profile, which `go tool pprof`, its flame graphs and other viewers
// of pprof open as they do Go's own heap profiles.
//
//	f, err := os.Create("heap.pb.gz")
//	err = heap.Of(cache).Write(f)
//
//	go tool pprof -top heap.pb.gz                          what is in use
//	go tool pprof -top -sample_index=peak_space heap.pb.gz     what was at the peak
//	go tool pprof -top -diff_base old.pb.gz new.pb.gz      what grew
//
// # Samples
//
// A file has three pairs of values, blocks and their bytes. A pair that is not known is 0, and the
// comments do not name it (`go tool pprof -comments`):
//
//	alloc_objects, alloc_space   handed out in total; a cache does not count this by owner, a [Counter] does
//	inuse_objects, inuse_space   allocated now, and held by graphs
//	peak_objects, peak_space     allocated when the most was, since New or ResetPeakStats, or in a scope
//
// Each known pair adds up to the cache's own statistics to the byte: MemoryAllocated plus
// GraphBytes.All, MaxMemoryAllocated, AllocatedBytes.All.Allocated. Other memory that is reserved
// and not active is free, and no sample: it stands in the comments (`go tool pprof -comments`).
//
// Memory that graphs use at each replay is neither allocated nor free for others. Its samples have
// the tag state=graph, the graph's number and the owners that its blocks had at the captured peak
// (memcache.Cache.GraphProfile). `-tagfocus state=graph` shows it alone, `-tagfocus graph=2` one
// graph, and `-tagignore state=graph` what is allocated. The peak pair has none of it.
//
// # Frames
//
// Blocks with a call stack (memcache.StacksState or more) have its frames from the program's own
// line on, without functions of this module that programs can't call; -tagleaf category,module puts
// layers below them. A block of a goroutine of this module has one frame: the outermost function
// that programs can call. Blocks without a stack have the category of their label, in parentheses,
// and below it the module's path, each part a frame with what is above it in its name: (gradient),
// encoder, encoder.0, encoder.0.linear. So -top shows the layers, -peek the parts of one, and a
// flame graph the model.
//
// # Tags
//
// A label's module, category and own pairs are tags; device too, if it is known, and state=graph.
// step, bytes (the block's size) and graph are numeric. With them `-tagfocus category=gradient` and
// `-tagfocus step=17` choose, and `-tagroot category,module` puts layers above call stacks. A pair
// of the program's own with one of these names has "tag." in front of its key.
//
// # Two files compared
//
// -diff_base subtracts any two files, in a pair that both have: -sample_index=peak_space for the
// peak of a step and that of the run. It subtracts by frames and ignores tags, such as the step: the
// gradients of step 17 are subtracted from those of step 18. Only -tagroot, -tagleaf and -tagfocus
// use tags; with -tagroot step nothing would cancel.
package heap
