// Package report makes one self-contained HTML page of what a device's memory was used for: memory over time by category,
// who held it at any moment and at the peak, the map of segments and blocks, the table of steps, what was never freed, and
// what other options would have cost. The page needs no network, no server and no other file, and refuses to load any.
//
// Of a program that runs:
//
//	cache.RecordHistory(memcache.HistoryOptions{Entries: 1 << 20, Stacks: memcache.StacksAlloc})
//	...
//	err := report.Write(w, report.FromCache(cache, report.Options{}))
//
// Of a file, as the command trace/memreport does: [Read] takes what torch.cuda.memory._dump_snapshot writes, and recordings
// in JSON lines.
//
// # What the figures are
//
// A moment is the number of an entry: the state is what holds after that entry. Every figure is of exact entries; only the
// drawing leaves out what is smaller than a pixel. Bytes are those of blocks, as MemoryAllocated counts them. Recordings say what was
// asked for, and the blocks follow from the addresses; where a recording began too late for that, requests are rounded to
// 512 bytes, and the page says so.
package report
