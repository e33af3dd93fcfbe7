// Package host is a device in pure Go: memory on the Go heap, a goroutine for each stream, real events.
//
//	dev, err := device.Open("host?capacity=2GiB") // or host.New(host.Config{Capacity: 2 << 30})
//
// Each Open makes a device of its own. It has a capacity, by default the smaller of 4 GiB and half of the
// machine's RAM, so that running out of memory can be tested; [Device.Fail] makes other calls fail. Kernels are Go
// functions ([device.Launch].Func); errors have the codes that CUDA would give.
//
// # The race detector checks the streams
//
// On a GPU, work on two streams that touches the same memory and is not ordered by an event is a bug that shows now
// and then. Here it is a data race, and a program built with -race reports it. The detector sees these
// edges and no others:
//
//   - the call that queues an operation, and the start of that operation
//   - an operation, and the next on the same stream
//   - a record, and a wait for that record, or a query or synchronize that finds it complete
//   - everything queued on a stream, and a Query, Synchronize or Close of the stream that finds it done
//   - what was queued before an OnDone, and its callback; callbacks are not ordered among themselves
//   - an operation on mapped memory, and those on what is mapped at the same addresses after its Unmap
//   - what raised a sticky error, and the calls that return it
//
// To the detector an operation reads and writes the ranges that it names, whatever it really does, from its
// start. A kernel that is written in assembly is checked all the same, and one that names too little is
// found out by what it touches.
//
// A collective operation is ordered after what other ranks did before theirs as far as it needs
// their data, and before what they do after it as far as they need its own: after a Broadcast the
// receivers come after the root's earlier work, and the root after the receivers' reading.
//
// # Collectives
//
// Ranks are goroutines of one process, on one device or on several ([device.Collectives]). An operation runs on the streams of its ranks, and each reduces
// a part of the elements for all. They are added in the order of the ranks, in the type itself, or in float32 for bfloat16, whose result is rounded once. So results are the same bit for bit on
// every rank and in every run. ReduceMax and ReduceMin of a NaN are a NaN.
//
// Streams, events and memory are checked and counted without any edge, so a test that is clean under -race doesn't
// owe that to a lock inside this package.
package host
