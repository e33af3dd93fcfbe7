// Package heap writes the holders of device memory as a pprof profile. `go tool pprof`, its flame
// graphs and other viewers of pprof open it as they open Go's own heap profiles.
//
//	f, err := os.Create("heap.pb.gz")
//	err = heap.Of(cache).Write(f)
//
//	go tool pprof -top heap.pb.gz                            in use
//	go tool pprof -top -sample_index=peak_space heap.pb.gz   at the peak
//	go tool pprof -top -diff_base old.pb.gz new.pb.gz        growth
//
// # Samples
//
// A file has three pairs of values, each a number of blocks and their bytes. An unknown pair is 0,
// and the comments do not name it (`go tool pprof -comments`):
//
//	alloc_objects, alloc_space   handed out in total, by owner; a [Counter] counts this
//	inuse_objects, inuse_space   allocated now, and held by graphs
//	peak_objects, peak_space     allocated at the peak since New or ResetPeakStats, or in a scope
//
// Each known pair adds up to the cache's own statistics to the byte: MemoryAllocated plus
// GraphBytes.All, MaxMemoryAllocated, AllocatedBytes.All.Allocated. Other memory that is reserved
// and not active is free. It is in no sample, but in the comments.
//
// Memory that graphs use at each replay is neither allocated nor free for other requests. Its
// samples have the tag state=graph, the graph's number and the owners of its blocks at the captured
// peak (memcache.Cache.GraphProfile). `-tagfocus state=graph` selects it, `-tagfocus graph=2`
// selects one graph, and `-tagignore state=graph` selects the allocated memory. The peak pair does
// not include it.
//
// # Frames
//
// Blocks with a call stack (memcache.StacksState or more) have its frames from the program's own
// line on, without functions of this module that programs can't call; -tagleaf category,module puts
// layers below them. A block that a goroutine of this module allocated has one frame: the outermost
// function that programs can call. Blocks without a stack have the category of their label, in
// parentheses, and below it the module's path. Each part of the path is a frame whose name includes
// the parts above it: (gradient), encoder, encoder.0, encoder.0.linear. So -top shows the layers,
// -peek the parts of one, and a flame graph the model.
//
// # Tags
//
// The tags are a label's module, category and own pairs, the device if it is known, and
// state=graph. step, bytes (the block's size) and graph are numeric. `-tagfocus category=gradient`
// and `-tagfocus step=17` select by them, and `-tagroot category,module` puts layers above call
// stacks. A pair of the program's own with one of these names has the prefix "tag." in its key.
//
// # Two files compared
//
// -diff_base subtracts any two files, in a pair that both have: -sample_index=peak_space for the
// peak of a step and that of the run. It subtracts by frames and ignores tags, such as the step:
// the gradients of step 17 are subtracted from those of step 18. Only -tagroot, -tagleaf and
// -tagfocus use tags; with -tagroot step nothing would cancel.
package heap
