package device

import "time"

// BusyTimer is implemented by devices that measure how long a stream was idle. On other devices,
// timed events around each kernel come close: install a StreamOptions.Launching hook, as
// trace.KernelTimer does.
type BusyTimer interface {
	// BusyTime returns the part of Elapsed(start, end) in which the stream ran operations. It
	// leaves out the time in which the stream had nothing queued or waited for an event of another
	// stream. Both events must have been recorded on one stream, start first; otherwise, and
	// whenever Elapsed returns an error, BusyTime returns an error.
	BusyTime(start, end Event) (time.Duration, error)
}
