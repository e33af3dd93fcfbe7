// Package report makes a self-contained HTML page about the use of a device's memory: memory over
// time by category, its holders at any moment and at the peak, the map of segments and blocks, the
// causes of fragmentation, the table of steps, the blocks that were never freed, and the cost of
// other options. The page needs no network, no server and no other file, and does not load any.
//
// A page of a running program:
//
//	cache.RecordHistory(memcache.HistoryOptions{Entries: 1 << 20, Stacks: memcache.StacksAlloc})
//	...
//	page, err := report.FromCache(cache, nil, report.Options{})
//	err = report.Write(w, page)
//
// The second argument is the steps of a trace.Profiler, if the program has one. Without it steps
// are taken from the labels.
//
// To make a page of a file, as cistern report does, use [Read]. It reads snapshots of
// torch.cuda.memory._dump_snapshot, and recordings in JSON lines.
//
// Package autograd/forecast makes pages of trainings that did not run, with the model by layers.
//
// # The figures
//
// A moment is the number of an entry, and the figures of a moment are those after the entry. Every
// figure is computed from all entries; only the drawing leaves out anything smaller than a pixel.
// Bytes are those of blocks, as MemoryAllocated counts them. Recordings contain requested sizes,
// and the sizes of the blocks follow from the addresses. If a recording began too late for that,
// requests are rounded by the options, and the page states so.
//
// # Steps
//
// A step is a mark in the recording, or the entries from its label's first allocation to the next
// label's. In PyTorch's snapshots it is a mark of torch.profiler, or else ends with a step of an
// optimiser. Memory that three or more steps left behind is reported as growing.
//
// # Trust
//
// Recordings are treated as hostile: reading is bounded, and their texts are never markup. The
// page's policy allows its own script and style and nothing else. The page contains addresses only
// if [Options] requests them; otherwise it contains the distances between them.
package report
