package device

import "context"

// Stream is an ordered queue of operations on one device (CUstream).
//
// The queue is bounded: with 1,024 operations queued, the next call that queues one waits. All
// methods that queue return before the operation has run. They return an error, and queue nothing,
// if the arguments are wrong, the stream or device is closed, or the device has a sticky error.
type Stream interface {
	// ID returns a number that is unique among all streams that this process ever makes.
	ID() uint64
	// Device returns the stream's device.
	Device() Device
	// Priority returns the priority of the StreamOptions that made the stream.
	Priority() int

	// CopyH2D copies len(src) bytes from pinned or registered host memory to the device
	// (cuMemcpyHtoDAsync). src must not be written until the copy is done. Other host memory is an
	// error that wraps [ErrNotPinned]. An empty src copies nothing.
	CopyH2D(dst Ptr, src []byte) error
	// CopyD2H copies len(dst) bytes from the device to pinned or registered host memory
	// (cuMemcpyDtoHAsync). dst must not be accessed until the copy is done.
	CopyD2H(dst []byte, src Ptr) error
	// CopyD2D copies bytes bytes inside the device (cuMemcpyDtoDAsync). The ranges must not
	// overlap.
	CopyD2D(dst, src Ptr, bytes int64) error
	// Copy2D copies rows to the device, from the device or inside the device (cuMemcpy2DAsync). The
	// rules are those of CopyH2D, CopyD2H and CopyD2D, where each range extends from the first row
	// to the last one: it must be live, or pinned, as a whole, and inside the device the ranges
	// must not overlap. The bytes between the rows are not accessed and may be in use meanwhile. c
	// may be reused as soon as Copy2D returns.
	Copy2D(c *Copy2D) error
	// Memset sets bytes bytes to value (cuMemsetD8Async).
	Memset(dst Ptr, value byte, bytes int64) error
	// Launch runs a kernel (cuLaunchKernel). l and its slices may be reused as soon as Launch
	// returns.
	Launch(l *Launch) error

	// Record records e: e is complete when everything queued before is done (cuEventRecord).
	// Recording an event again replaces its earlier record; waits that are queued on the earlier
	// record are unaffected.
	Record(e Event) error
	// Wait makes everything queued later wait for the present record of e (cuStreamWaitEvent). An
	// event that was never recorded is complete. e may belong to another device of the same
	// backend.
	Wait(e Event) error
	// OnDone calls fn once everything queued before is done. fn runs on the device's single
	// completion goroutine, never on the stream, which continues meanwhile. Its argument is the
	// device's sticky error, or nil. fn must not wait for the device. It is called exactly once if
	// OnDone returns nil.
	OnDone(fn func(error)) error

	// Query reports whether everything queued is done (cuStreamQuery). It never waits.
	Query() (done bool, err error)
	// Synchronize waits until everything queued before the call is done, and returns the device's
	// sticky error, if any (cuStreamSynchronize). Cancelling ctx ends the waiting, not the work.
	Synchronize(ctx context.Context) error

	// Closed reports whether Close has finished. From then on everything that was ever queued on
	// the stream is complete.
	Closed() bool
	// Close waits for everything queued and ends the stream. It is idempotent. Streams must not be
	// closed from OnDone callbacks.
	Close() error
}

// BatchCopier is implemented by streams that copy many ranges in one operation
// (cuMemcpyBatchAsync).
//
// The ranges of a batch are copied in any order, so none may overlap a range that another one
// writes. The slices that name them may be reused as soon as the call returns; the memory may not.
type BatchCopier interface {
	// CopyH2DBatch copies len(src[i]) bytes from src[i] to dst[i], for every i, as one queued
	// operation. The rules are those of CopyH2D; if any range is wrong nothing is queued.
	CopyH2DBatch(dst []Ptr, src [][]byte) error
	// CopyD2HBatch copies len(dst[i]) bytes from src[i] to dst[i], for every i, as one queued
	// operation. The rules are those of CopyD2H; if any range is wrong nothing is queued.
	CopyD2HBatch(dst [][]byte, src []Ptr) error
}

// Event marks a point in a stream (CUevent). The zero state is "never recorded", which counts as
// complete.
type Event interface {
	// Query reports whether the last record is complete (cuEventQuery). It never waits.
	Query() (done bool, err error)
	// Synchronize waits for the last record (cuEventSynchronize). Cancelling ctx ends the waiting.
	Synchronize(ctx context.Context) error
	// Timed reports whether the event was made with [EventOptions].Timed.
	Timed() bool
	// Close releases the event. Waits that are queued on its record are unaffected. It is
	// idempotent: closing again does nothing, even if the driver's event has another owner by then.
	Close() error
}
