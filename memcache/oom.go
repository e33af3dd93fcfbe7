package memcache

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// What happens when there is no memory. The cache itself gives back all it can before (allocGrowing); then reclaimers, which
// know what the program can do without, are asked one after the other; then the request fails with an error that says
// where the memory is. The device stays usable after it, and so does the cache.

// ErrOutOfMemory says that the device, or the cache's limit, has too little free memory. The error is an
// [*OutOfMemoryError].
var ErrOutOfMemory = errors.New("out of memory")

// OutOfMemoryError is a failed allocation, with the figures that PyTorch's OutOfMemoryError gives. All are
// bytes.
type OutOfMemoryError struct {
	Requested int64  // what the caller asked for
	Segment   int64  // what the driver was asked for
	Device    string // the device's name
	Total     int64  // the device's memory
	Free      int64  // the driver's free memory; -1: it does not say
	Limit     int64  // the cache's limit; -1: none
	Allocated int64  // blocks handed out
	Pending   int64  // blocks freed, and waiting for a recorded stream
	Reserved  int64  // segments held from the driver
	Largest   int64  // the largest free block of the request's pool and stream

	// PrivatePools are the free blocks of private pools, of which default requests get none; PyTorch's
	// message counts them as allocated.
	PrivatePools int64

	// Label says what the memory was for; Holders are those who hold the most, by module and category, if anything has a
	// label. They are looked up when the request is given up, a moment after the figures above: what other goroutines
	// allocate or free meanwhile makes a difference.
	Label   Label
	Holders []Share

	// Err is the driver's error; nil if the limit or the request's size was in the way.
	// If the request has waited for memory ([Cache.Wait]) it is why it waits no longer.
	Err error

	Waited time.Duration // how long the request has waited for memory; 0: it has not

	tooLarge bool
}

// Error tells what was asked, what there is, and where the rest went.
func (e *OutOfMemoryError) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "memcache: out of memory on %s: ", e.Device)
	if e.tooLarge {
		fmt.Fprintf(&s, "%d bytes are asked for, and no device has 1 EiB", e.Requested)
		return s.String()
	}
	if e.Label != (Label{}) {
		fmt.Fprintf(&s, "%s asks for %s", e.Label, formatBytes(e.Requested))
	} else {
		fmt.Fprintf(&s, "%s are asked for", formatBytes(e.Requested))
	}
	fmt.Fprintf(&s, " (a segment of %s)", formatBytes(e.Segment))
	free := "an unknown part is"
	if e.Free >= 0 {
		free = formatBytes(e.Free) + " are"
	}
	fmt.Fprintf(&s, "; the device has %s, of which %s free", formatBytes(e.Total), free)
	if e.Limit >= 0 {
		fmt.Fprintf(&s, "; the cache may reserve %s", formatBytes(e.Limit))
	}
	fmt.Fprintf(&s, "; %s are reserved: %s allocated, %s freed but in use by a recorded stream, %s free",
		formatBytes(e.Reserved), formatBytes(e.Allocated), formatBytes(e.Pending), formatBytes(e.Reserved-e.Allocated-e.Pending))
	if e.PrivatePools > 0 {
		fmt.Fprintf(&s, ", of which %s belong to private pools", formatBytes(e.PrivatePools))
	}
	fmt.Fprintf(&s, " (the largest free block of this pool and stream has %s)", formatBytes(e.Largest))
	s.WriteString(namesOf(e.Holders))
	if e.Waited > 0 {
		fmt.Fprintf(&s, "; it waited for %v: %v", e.Waited.Round(time.Millisecond), e.Err)
	}
	return s.String()
}

// namesOf lists holders at the end of an error.
func namesOf(holders []Share) string {
	var s strings.Builder
	for i, h := range holders {
		fmt.Fprintf(&s, "%s%s holds %s", map[bool]string{true: "; ", false: ", "}[i == 0], h.Name, formatBytes(h.Bytes))
	}
	return s.String()
}

// Unwrap returns ErrOutOfMemory and the driver's error, if there is one.
func (e *OutOfMemoryError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrOutOfMemory}
	}
	return []error{ErrOutOfMemory, e.Err}
}

// oom records a request that failed. shards.mu is held.
func (l *historyLog) oom(r *request, err error) {
	h := l.Load()
	var oom *OutOfMemoryError
	if h != nil && errors.As(err, &oom) {
		h.add(&HistoryEntry{Action: ActionOOM, Size: r.Bytes, Stream: r.shard.id, Free: max(oom.Free, 0), Label: r.label.value(), Pool: idOf(r.Pool), Stack: r.stack})
	}
}
