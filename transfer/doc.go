// Package transfer copies data between the host and a device asynchronously, through pinned host
// memory.
//
// Asynchronous copies need pinned host memory, and each pinned allocation is a driver call. A
// [Pool] caches it: a released buffer is reused when the copies that use it are done.
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
// [Pool.Upload] and [Pool.Download] copy ordinary Go slices by way of pinned buffers. A [Batch]
// queues many copies and kernels at once. [Pool.Register] pins a Go slice in place, and
// [Pool.Launch] runs a kernel that uses buffers in place.
//
// Package transfer/loader fills and uploads the batches of a training loop ahead of their use.
//
// # Order of copies
//
// A copy is queued on a stream and runs in the order of that stream's work. [Copy.Wait] waits for
// it on the host. Work on other streams waits for it if the caller records an event after it.
//
// The block and the buffer may be freed and released at once: the block is recorded on the stream
// (memcache's RecordStream), and the pool reuses a buffer only after its copies. While a copy is in
// flight the host must not touch the buffer: [Buffer.Bytes] returns nil, and accesses such as
// [Buffer.ReadAt] fail with [ErrInFlight]. Copies of one buffer on several streams are ordered if
// one of them writes it. The use of one block on several streams is the caller's to order.
//
// # Errors
//
// Everything that can be checked is checked before anything is queued; such an error changes
// nothing. A copy that fails on the device makes the device unusable: the copy's handle and later
// calls return that error. Buffers go back to the pool on every path. The classes are [ErrRange],
// [ErrLimit], [ErrInFlight], [ErrReleased], [ErrInvalid] and [ErrClosed], and those of packages
// device and memcache.
//
// # Race builds
//
// With -race the detector checks the streams of the host device. It reports a program that reads
// memory which an unfinished copy writes, and a missing event between two streams. The pool's own
// queries, such as those about copies of other buffers or about completions for an [Observer], do
// not hide such errors, because they order nothing.
package transfer
