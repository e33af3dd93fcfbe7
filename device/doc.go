// Package device defines the devices on which programs compute: raw memory, pinned host memory,
// streams, events, graphs and collectives.
//
// A program opens a device by name, as database/sql opens a database. Backends register themselves
// when they are imported:
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
// Work is queued on a [Stream] and runs in the order in which it was queued. Streams are
// independent of each other. An [Event] orders work on two streams: the producer records it, the
// consumer waits for it.
//
//	producer.Launch(&device.Launch{...})   // writes x
//	producer.Record(ready)
//	consumer.Wait(ready)
//	consumer.Launch(&device.Launch{...})   // reads x
//
// Every queued operation names the memory that it reads and writes. A range that is not inside one
// live allocation is an error of the call that queues it.
//
// # Graphs
//
// Work that is launched repeatedly can be captured once and then queued by one call, on streams
// that implement [GraphCapturer]:
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
// Devices that implement [Collectives] exchange data, each as one rank of a [Communicator]. The
// operations run in the order of the devices' streams:
//
//	id, err := dev.(device.Collectives).NewCommunicatorID()   // on one rank, for all ranks
//	comm, err := dev.(device.Collectives).
//		NewCommunicator(ctx, id, rank, size, device.CommunicatorOptions{})
//	err = comm.AllReduce(stream, gradient, gradient, count, device.Float32, device.ReduceAvg)
//	err = stream.Synchronize(ctx)
//	err = comm.AsyncError()
//
// # Errors
//
// A failed driver call returns an [*Error] that names the call, the device, the bytes and the code.
// A failure of queued work, such as a kernel that faults, can't be returned by the call that queued
// it. Instead it makes the device unusable, and every later call on the device returns the failure
// ([ErrSticky]), as with a CUDA context.
//
// # Goroutines
//
// All methods of a Device, Stream and Event may be called from any goroutine. Operations queued on
// one stream from several goroutines run in the order in which the calls queued them.
package device
