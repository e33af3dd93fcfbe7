// Package memtest has budgets of device memory for go test: [Peak] fails a test that takes more
// than so many bytes, [NoLeak] one that leaves blocks allocated, and [Golden] one with other memory
// at its peak than a file lists. [Report] makes metrics of a benchmark.
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
// A dry device allocates what the GPU of its name would and computes nothing, so that a test
// without a GPU gates a model of a GPU's size. The figures of a dry GPU are the same on every
// machine. Those of the host device depend on its processor and cores, and those of a device that
// computes with several streams may differ from run to run.
//
// # The cache
//
// All figures are of the whole cache, with the memory from before and of other goroutines: tests
// that run in parallel open caches of their own.
//
// # Golden files
//
// A file is written by
//
//	go test -run TestStepMemory -memtest.update
//
// and lists the requested bytes and the blocks at the peak by category and module, a line each. The
// flag has this name because a test program with two flags "update" panics as it starts. Where the
// package's tests define a flag of that name, as for golden files of their own, -update writes
// these, too:
//
//	var _ = flag.Bool("update", false, "write golden files")
//
// # Lines
//
// Failures print the lines of the program that hold the memory. For this each function but Report
// makes the cache keep the call stacks of its blocks from there on, with a history of one entry if
// it has none ([memcache.Cache.RecordHistory]). Blocks from before have no line.
package memtest
