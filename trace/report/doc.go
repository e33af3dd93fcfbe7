// Package report makes one self-contained HTML page of what a device's memory was used for: memory
// over time by category, its holders at any moment and at the peak, the map of segments and blocks,
// what fragments them, the table of steps, what was never freed, and what other options would have
// cost. The page needs no network, no server and no other file, and refuses to load any.
//
// Of a program that runs:
//
//	cache.RecordHistory(memcache.HistoryOptions{Entries: 1 << 20, Stacks: memcache.StacksAlloc})
//	...
//	page, err := report.FromCache(cache, nil, report.Options{})
//	err = report.Write(w, page)
//
// The second argument are the steps of a trace.Profiler, if there is one; without it steps are those of the labels.
//
// Of a file, as cistern report does: [Read] takes snapshots of torch.cuda.memory._dump_snapshot, and
// recordings in JSON lines.
//
// Package autograd/forecast makes pages of trainings that did not run, with the model by layers.
//
// # What the figures are
//
// A moment is the number of an entry: the state is what holds after that entry. Every figure is of exact entries; only the
// drawing leaves out what is smaller than a pixel. Bytes are those of blocks, as MemoryAllocated counts them. Recordings say what was
// asked for, and the blocks follow from the addresses; where a recording began too late for that, requests are rounded as the
// options say, and the page says so.
//
// # Steps
//
// A step is what was marked as one, or the stretch from its label's first allocation to the next one's; in PyTorch's snapshots
// torch.profiler's marks, or else what ends with a step of an optimiser. What three steps or more left behind is said to grow.
//
// # Trust
//
// Recordings are taken for hostile: what is read is bounded, and no text of theirs is ever markup. The page's policy allows its own
// script and style and nothing else. Addresses are left out unless [Options] asks for them; what the page has is the distances between
// them.
package report
