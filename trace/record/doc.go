// Package record streams every allocation, free and driver call of a cache to a file while the
// program runs, with the time, the label (module, category, step) and, on request, the call stack.
// The command cistern replays such a file without a device, to verify it and to estimate the cost
// of other options:
//
//	f, err := os.Create("run.jsonl.gz")
//	options := record.Options{Gzip: true, Stacks: memcache.StacksAlloc}
//	recorder, err := record.Start(f, cache, options)
//	for n := int64(1); n <= steps; n++ {
//		step := recorder.Step(n)
//		train(memcache.WithStep(ctx, n))
//		step.End()
//	}
//	err = recorder.Close()
//
//	cistern verify run.jsonl.gz
//	cistern whatif -c recorded -c expandable_segments:True run.jsonl.gz
//
// The file is JSON lines. If the program is killed, the file can be read up to its end, and events
// of the last quarter of a second may be missing. Nothing else is lost: a program that is faster
// than its disk waits, before it takes any lock. A name of a module and the tags of a label are
// written once in a file. Tags that differ in every step therefore make it long. If writing fails
// the program continues, the recording ends, and Close returns the error.
//
// A recording contains the addresses of blocks, names of functions, paths of source files, and the
// texts of labels. It contains no contents of memory.
package record
