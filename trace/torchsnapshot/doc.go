// Package torchsnapshot writes the history of a cache in PyTorch's form: the file that
// torch.cuda.memory._dump_snapshot writes. Its readers are `python -m torch.cuda._memory_viz`
// (trace_plot, segment_plot, stats, memory, compare), pytorch.org/memory_viz, and the command
// cistern, which verifies the file and estimates the cost of other options.
//
//	// At the start:
//	options := memcache.HistoryOptions{Entries: 1 << 20, Stacks: memcache.StacksAll}
//	err := cache.RecordHistory(options)
//	…
//	f, err := os.Create("snapshot.pickle")
//	err = torchsnapshot.Write(f, torchsnapshot.State{Snapshot: cache.Snapshot(), Config: config})
//
// The history may begin at any moment. The command cistern reconstructs the state at its first
// entry. For that, entries have two fields in addition to PyTorch's: block_size of frees, and
// pool_id. cistern can't verify a cache with NoCaching. The viewers show earlier allocations as
// such. Entries have the call stacks of the history.
//
// # Layers and steps
//
// Frames are Go's, the innermost first and from the user's line on, between two kinds of frames
// that are not calls. The first frame is the step ("step:17:step 17"), so that viewers show it
// first. At the end, at the root of the call stack, are the module, with a frame for each part of
// its path, and the category ("module:0:encoder.0", "module:0:encoder", "category:0:activation"):
// flame graphs thus group by category, module and call. The label is also the entry's
// user_metadata. The category of allocations determines the colours and the legend in the timeline
// of memory_viz, as with PyTorch's own profiler. There "unknown" is memory without a category.
//
// # Options
//
// The option string (allocator_settings) is the cache's. It lacks exact:True, because PyTorch is
// always exact, and it has exact:False for a cache without Config.Exact, which cistern reads and
// torch's viewers ignore.
package torchsnapshot
