// Package transfer moves data between the host and a device: through pinned host memory,
// asynchronously.
//
// A device copies on its own only from and to pinned memory, which costs a driver call to get. A
// [Pool] keeps it, and hands it out again when the copies that use it are done:
//
//	pool, err := transfer.New(dev, transfer.Config{})
//	defer pool.Close()
//
//	buf, err := pool.Get(ctx, 4*n)
//	weights, err := transfer.As[float32](buf)
//	fill(weights)
//	c, err := pool.H2D(ctx, stream, block, 0, buf, 0, 4*n)
//	err = buf.Release() // reused when the copy is done
//
// # Who waits for what
//
// A copy is queued on a stream, between that stream's other work. [Copy.Wait] waits for it on the
// host; other streams wait for an event that the caller records after it. What a copy touches
// looks after itself: the block is recorded on the stream (memcache's RecordStream), so that it may
// be freed at once, and the buffer may be released at once. A buffer in flight refuses to be
// touched; copies of one buffer on several streams are ordered where one of them writes it.
// Ordering the use of a block on several streams is the caller's.
//
// [Pool.Upload] and [Pool.Download] copy ordinary Go slices, by way of pinned buffers. A [Batch]
// queues many copies and kernels at once. [Pool.Register] pins a Go slice in place, and
// [Pool.Launch] runs a kernel that uses buffers in place.
//
// Package transfer/loader fills and uploads the batches of a training loop ahead of their use.
//
// # Errors
//
// Everything that can be checked is checked before anything is queued; such an error changes
// nothing. A copy that fails on the device makes the device unusable, and the copy's handle and
// later calls return that. On every path buffers go back to the pool. The classes are [ErrRange],
// [ErrLimit], [ErrInFlight], [ErrReleased], [ErrInvalid] and [ErrClosed], and those of packages
// device and memcache.
//
// # Race builds
//
// With -race the detector checks the streams of the host device. A program that reads what an
// unfinished copy writes is reported, and so is a missing event between two streams: what the pool
// itself looks at (copies of other buffers, completions that an [Observer] is told of) orders
// nothing.
package transfer
