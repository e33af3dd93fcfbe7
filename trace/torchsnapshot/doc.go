// Package torchsnapshot writes the history of a cache in PyTorch's form: the file that
// torch.cuda.memory._dump_snapshot writes. Its readers are `python -m torch.cuda._memory_viz`
// (trace_plot, segment_plot, stats, memory, compare), pytorch.org/memory_viz, and the command cistern,
// which verifies the file and estimates the cost of other options.
//
//	err := cache.RecordHistory(memcache.HistoryOptions{Entries: 1 << 20, Stacks: memcache.StacksAll}) // at the start
//	…
//	f, err := os.Create("snapshot.pickle")
//	err = torchsnapshot.Write(f, torchsnapshot.State{Snapshot: cache.Snapshot(), Config: config})
//
// The history may begin at any moment. The command cistern reconstructs the state at its first entry; for that,
// entries have two fields beside PyTorch's: block_size of frees, and pool_id. It can't verify a cache
// with NoCaching. The viewers show earlier allocations as such. Entries have the stacks of the history.
//
// # Layers and steps
//
// Frames are Go's, the innermost first and from the user's line on, between two kinds that are no
// calls. In front is the step ("step:17:step 17"), so that viewers show it first. At the end, where
// the call stack has its root, come the module, a frame for each part of its path, and the category
// ("module:0:encoder.0", "module:0:encoder", "category:0:activation"): flame graphs group by
// category, module and call. A label is also the entry's user_metadata, and the category of
// allocations is what the timeline of memory_viz colours and explains in its legend, as PyTorch's
// own profiler does it. There "unknown" is what nobody said a category of.
//
// # Options
//
// The option string (allocator_settings) is the cache's, without exact:True, which is how PyTorch behaves, and with exact:False
// for a cache without Config.Exact: torch's viewers don't look at it, and cistern does.
package torchsnapshot
