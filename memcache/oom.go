package memcache

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cistern-ml/cistern/internal/shortage"
	"github.com/cistern-ml/cistern/internal/sizes"
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
	Largest   int64  // the largest free block of the request's pool, stream and kind (small or large)

	// Free blocks that a request of this pool, stream and size gets none of: those of the pool on other
	// streams, those for other sizes (up to 1 MiB, or larger), and those of other pools, of which graphs
	// hold a part. PyTorch's message counts blocks of private pools as allocated.
	OtherStreams, OtherSizes, OtherPools, Graphs int64

	// Label is what the memory was for. Holders are the modules and categories with the most bytes, if
	// anything has a label. Advice says which call or option would have served the request, or that none
	// would; it is empty after a wait, and where the driver reports no free memory. Advice and Holders
	// are looked up when the request is given up, a moment after the figures above: what other
	// goroutines allocate or free meanwhile makes a difference.
	Label   Label
	Holders []Share
	Advice  string

	// Err is the driver's error; nil if the limit or the request's size was in the way.
	// If the request has waited for memory ([Cache.Wait]) it is why it waits no longer.
	Err error

	Waited time.Duration // how long the request has waited for memory; 0: it has not

	tooLarge bool
}

// Error explains in at most five lines what was asked for, where the memory is, and what would have helped.
func (e *OutOfMemoryError) Error() string {
	if e.tooLarge {
		return fmt.Sprintf("memcache: out of memory on %s: %d bytes are asked for, and no device has 1 EiB", e.Device, e.Requested)
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
