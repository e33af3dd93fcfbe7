package device

import "time"

// BusyTimer is implemented by devices whose streams know when they have nothing to do. On others, timed events around each kernel come near
// it: StreamOptions.Launching is for that, and trace.KernelTimer does it.
type BusyTimer interface {
	// BusyTime is the part of Elapsed(start, end) in which the stream ran operations: without the time in which none was
	// queued, or in which it waited for an event of another stream. Both events were recorded on one stream, start first;
	// else, and where Elapsed returns an error, it returns one.
	BusyTime(start, end Event) (time.Duration, error)
}
