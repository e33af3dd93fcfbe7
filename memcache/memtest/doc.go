// Package memtest checks budgets of device memory in go test. [Peak] fails a test that takes more
// than a number of bytes, [NoLeak] one that leaves blocks allocated, and [Golden] one with other
// memory at its peak than a file lists. [Report] adds memory metrics to a benchmark.
//
//	func TestStepMemory(t *testing.T) {
//		rt, err := tensor.Open("dry:cuda?gpu=H100") // import _ ".../device/dry"
//		...
//		memtest.NoLeak(t, rt.Cache())
//		...    // make the model
//		step() // makes the optimiser's state
//		memtest.Golden(t, rt.Cache(), "testdata/step.memory", step)
//	}
//
// A dry device allocates what the GPU of its name would, and computes nothing. So a test without a
// GPU can check a model of a GPU's size. The figures of a dry GPU are the same on every machine.
// The figures of the host device depend on its processor and cores, and those of a device that
// computes on several streams may differ from run to run.
//
// # The cache
//
// All figures are of the whole cache, including earlier memory and other goroutines. So tests that
// run in parallel must open caches of their own.
//
// # Golden files
//
// Write a golden file with
//
//	go test -run TestStepMemory -memtest.update
//
// It lists the requested bytes and the blocks at the peak by category and module, one per line. The
// flag is not called "update", because a test program that defines a flag twice panics at its
// start. If the package's tests define a flag of that name, for example for golden files of their
// own, -update writes the files of Golden, too:
//
//	var _ = flag.Bool("update", false, "write golden files")
//
// # Lines
//
// Failures print the program's lines that hold the memory. For this, each function except Report
// makes the cache keep the call stacks of its blocks from then on, with a history of one entry if
// it has none ([memcache.Cache.RecordHistory]). Blocks that were allocated earlier have no line.
package memtest
