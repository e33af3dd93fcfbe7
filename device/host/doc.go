// Package host implements a device in pure Go: memory on the Go heap, a goroutine for each stream,
// real events.
//
//	dev, err := device.Open("host?capacity=2GiB") // or host.New(host.Config{Capacity: 2 << 30})
//
// Each Open makes a new device. Its capacity, by default the smaller of 4 GiB and half of the
// machine's RAM, makes out-of-memory testable; [Device.Fail] makes other calls fail. Kernels are Go
// functions ([device.Launch].Func). Errors have the codes that CUDA would return.
//
// # The race detector checks the streams
//
// On a GPU, work on two streams that accesses the same memory without an event between them is a
// bug that shows only now and then. Here it is a data race, and a program built with -race reports
// it. The detector sees these edges and no others:
//
//   - from the call that queues an operation to the start of that operation
//   - from an operation to the next one on the same stream
//   - from a record to a wait for that record, or to a query or synchronize that finds it complete
//   - from everything queued on a stream to a Query, Synchronize or Close that finds it done
//   - from the operations queued before an OnDone to its callback; callbacks are not ordered among
//     themselves
//   - from an operation on mapped memory to those on memory that is mapped at the same addresses
//     after its Unmap
//   - from the operation that raised a sticky error to the calls that return it
//
// For the detector, an operation accesses the ranges that it names as soon as it starts, whatever
// its code does. So kernels written in assembly are checked, too, and a kernel that names too
// little is reported for the memory that it accesses.
//
// A collective operation is ordered with the other ranks' work only as far as the data flows: after
// a Broadcast, the receivers come after the root's earlier work, and the root's later work comes
// after the receivers' reads.
//
// Streams, events and memory are checked and accounted without any edge, so a test that is clean
// under -race does not owe that to a lock inside this package.
//
// # Collectives
//
// Ranks are goroutines of one process, on one device or on several ([device.Collectives]). An
// operation runs on the streams of its ranks, and each rank reduces a part of the elements for all.
// Elements are added in the order of the ranks, in their own type, or for bfloat16 in float32 with
// one rounding of the result. So results are bit-identical on every rank and in every run.
// ReduceMax and ReduceMin of a NaN are NaN.
package host
