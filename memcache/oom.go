package memcache

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cistern-ml/cistern/internal/shortage"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// Out of memory. First the cache returns all that it can (allocGrowing). Then the reclaimers, which
// know what the program can do without, are called one after the other. Then the request fails with
// an error that reports where the memory is. The device and the cache stay usable after it.

// ErrOutOfMemory means that the device or the limit of the cache leaves too little free memory. The
// error is an [*OutOfMemoryError].
var ErrOutOfMemory = errors.New("out of memory")

// OutOfMemoryError is the error of an allocation that found no memory, with the figures of
// PyTorch's OutOfMemoryError, in bytes.
type OutOfMemoryError struct {
	Requested int64  // bytes of the request
	Segment   int64  // bytes requested from the driver
	Device    string // the device's name
	Total     int64  // the device's memory
	Free      int64  // the driver's free memory; -1: unknown
	Limit     int64  // the cache's limit; -1: none
	Allocated int64  // allocated blocks
	Pending   int64  // freed blocks that wait for a recorded stream
	Reserved  int64  // segments held from the driver
	Largest   int64  // largest free block of the request's pool, stream and kind (small or large)

	// Free blocks that can't serve a request of this pool, stream and size: the pool's blocks on
	// other streams, blocks for other sizes (up to 1 MiB, or larger), and blocks of other pools.
	// Graphs is the part of OtherPools that graphs hold. PyTorch's message counts blocks of private
	// pools as allocated.
	OtherStreams, OtherSizes, OtherPools, Graphs int64

	// Label is the label of the request. Holders are the modules and categories with the most
	// bytes, if any memory has a label. Advice names the call or option that would have served the
	// request, or states that none would; it is empty after a wait, and where the driver reports no
	// free memory. Advice and Holders are determined when the request fails, a moment after the
	// figures above, so allocations and frees of other goroutines may make them differ.
	Label   Label
	Holders []Share
	Advice  string

	// Err is the driver's error; nil if the limit or the request's size was the reason. If the
	// request has waited for memory ([Cache.Wait]) it is the reason why the wait ended.
	Err error

	Waited time.Duration // how long the request has waited for memory; 0: not at all

	tooLarge bool
}

// Error reports in at most five lines the request, where the memory is, and what would have helped.
func (e *OutOfMemoryError) Error() string {
	if e.tooLarge {
		return fmt.Sprintf("memcache: out of memory on %s: %d bytes were requested, and no device has 1 EiB", e.Device, e.Requested)
	}
	s := shortage.Shortage{
		Device: e.Device, Requested: e.Requested, Segment: e.Segment, Total: e.Total, Free: e.Free, Limit: e.Limit,
		Reserved: e.Reserved, Allocated: e.Allocated, Pending: e.Pending, Largest: e.Largest,
		OtherStreams: e.OtherStreams, OtherSizes: e.OtherSizes, OtherPools: e.OtherPools, Graphs: e.Graphs, Advice: e.Advice,
	}
	if e.Label != (Label{}) {
		s.Label = e.Label.String()
	}
	for _, h := range e.Holders {
		s.Holders = append(s.Holders, h.Name+" "+sizes.Format(h.Bytes))
	}
	if e.Waited > 0 {
		s.Waited = fmt.Sprintf("%v: %v", e.Waited.Round(time.Millisecond), e.Err)
	}
	return "memcache: " + strings.Join(s.Lines(), "\n\t")
}

// namesOf lists holders at the end of an error.
func namesOf(holders []Share) string {
	var s strings.Builder
	for i, h := range holders {
		fmt.Fprintf(&s, "%s%s holds %s", map[bool]string{true: "; ", false: ", "}[i == 0], h.Name, sizes.Format(h.Bytes))
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
		e := event(ActionOOM)
		e.size, e.block, e.stream, e.label, e.pool = r.Bytes, max(oom.Free, 0), r.shard.id, r.label, r.Pool
		e.setStack(r.stack)
		h.add(&e)
	}
}
