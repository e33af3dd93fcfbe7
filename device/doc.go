// Package device says what a device is: raw memory, pinned host memory, streams and events.
//
// A program opens a device by name, as database/sql opens a database. Backends register themselves when
// they are imported:
//
//	import (
//		"github.com/cistern-ml/cistern/device"
//		_ "github.com/cistern-ml/cistern/device/host"
//	)
//
//	dev, err := device.Open("host?capacity=2GiB")
//	defer dev.Close()
//
// # Streams and events
//
// Work is queued on a [Stream] and runs in the order in which it was queued; two streams run independently.
// A hand-over from one stream to another is an [Event]: the producer records it, the consumer waits for it.
//
//	producer.Launch(&device.Launch{...})   // writes x
//	producer.Record(ready)
//	consumer.Wait(ready)
//	consumer.Launch(&device.Launch{...})   // reads x
//
// Every queued operation names the memory that it reads and writes. A range that is not inside one live
// allocation is an error of the call that queues it.
//
// # Graphs
//
// What is launched again and again can be captured once and queued by one call, on streams that are a [GraphCapturer]:
//
//	c := stream.(device.GraphCapturer)
//	err := c.BeginCapture()
//	stream.Launch(&device.Launch{...})   // does not run yet
//	graph, err := c.EndCapture()
//	for range steps {
//		err = graph.Replay(stream)
//	}
//	err = graph.Close()
//
// # Collectives
//
// Devices that are [Collectives] exchange data with others, each as one rank of a [Communicator], in the order of their streams:
//
//	id, err := dev.(device.Collectives).NewCommunicatorID()   // on one rank, for all of them
//	comm, err := dev.(device.Collectives).NewCommunicator(ctx, id, rank, size, device.CommunicatorOptions{})
//	err = comm.AllReduce(stream, gradient, gradient, count, device.Float32, device.ReduceAvg)
//	err = stream.Synchronize(ctx)
//	err = comm.AsyncError()
//
// # Errors
//
// An error of a driver call is an [*Error] and names call, device, bytes and code. An error of work that
// already runs (a kernel that faults) can't be returned by the call that queued it: it makes the device
// unusable, and every later call on the device returns it ([ErrSticky]), as a CUDA context does.
//
// # Goroutines
//
// All methods of a Device, Stream and Event may be called from any goroutine. Operations queued on one
// stream from several goroutines run in the order in which the calls queued them.
package device
