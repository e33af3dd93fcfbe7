// Package record streams every allocation, free and driver call of a cache to a file while the program
// runs, with the time, the label (module, category, step) and, on request, the call stack. The command
// cistern replays such a file without a device, to verify it and to estimate the cost of other options:
//
//	f, err := os.Create("run.jsonl.gz")
//	recorder, err := record.Start(f, cache, record.Options{Gzip: true, Stacks: memcache.StacksAlloc})
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
// The file is JSON lines. It can be read up to where it ends, also if the program was killed: what happened in the last
// quarter of a second may be missing. Nothing else is lost: a program that is faster than its disk waits, before it takes
// any lock. Names of modules and tags of labels are few in a file, and stand in it once; tags that differ in every step make
// it long. If writing fails the program goes on, the recording ends, and Close says so.
//
// A recording has the addresses of blocks, names of functions and paths of source files, and whatever labels say; no
// contents of memory.
package record
