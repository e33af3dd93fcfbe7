package memcache

import (
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The history is a ring of the last events under one lock. It is for the minute before a failure,
// and its memory is bounded. A complete log goes to a reader as fast as it is made
// (historystream.go). When both are off, a hit pays one load of a pointer.

// history is the destination of events. It is immutable and replaced as a whole, so that an event
// loads one pointer.
type history struct {
	stacks Stacks
	ring   *historyRing   // or nil
	stream *HistoryStream // or nil
}

// add records an event, with the stack of the call where the receivers want it.
func (h *history) add(e *historyEvent) {
	if h.stream != nil {
		h.stream.add(e)
	}
	if h.ring != nil {
		h.ring.add(e.entry(time.Now()))
	}
}

// stack returns the caller's stack, or nil if the history wants none at this level. It is taken
// before any lock, because a new stack takes microseconds.
func (h *history) stack(level Stacks) []uintptr {
	if h.stacks < level {
		return nil
	}
	if h.stream != nil {
		return h.stream.sites.caller()
	}
	return h.ring.sites.caller()
}

// historyLog is a cache's history, or nil: an event then costs one load. Its methods may be called
// with any lock held.
type historyLog struct{ atomic.Pointer[history] }

// set sets the history. shards.mu is held.
func (l *historyLog) set(ring *historyRing, stream *HistoryStream) {
	h := &history{ring: ring, stream: stream}
	if ring != nil {
		h.stacks = Stacks(ring.stacks.Load())
	}
	if stream != nil {
		h.stacks = max(h.stacks, Stacks(stream.stacks.Load()))
	}
	if ring == nil && stream == nil {
		h = nil
	}
	l.Store(h)
}

func (l *historyLog) stream() *HistoryStream {
	if h := l.Load(); h != nil {
		return h.stream
	}
	return nil
}

func (l *historyLog) ring() *historyRing {
	if h := l.Load(); h != nil {
		return h.ring
	}
	return nil
}

// mark records an event that only a stream receives.
func (l *historyLog) mark(a Action, stream uint64, size int64) { l.markAt(a, stream, 0, size) }

// markAt is mark for an event with an address.
func (l *historyLog) markAt(a Action, stream uint64, p device.Ptr, size int64) {
	if h := l.Load(); h != nil && h.stream != nil {
		e := event(a)
		e.stream, e.address, e.size = stream, p, size
		h.stream.add(&e)
	}
}

// markPool is mark for an operation on one private pool; nil: the default pool and the released
// ones.
func (l *historyLog) markPool(a Action, p *placement.Pool) {
	if h := l.Load(); h != nil && h.stream != nil {
		e := event(a)
		e.pool = p
		h.stream.add(&e)
	}
}

// options records the new options without the limit, whose entry follows.
func (l *historyLog) options(c Config) {
	if s := l.stream(); s != nil {
		c.PerProcessMemoryFraction, c.MemoryLimit = 0, 0
		s.mu.Lock()
		n := len(s.options)
		s.options = append(s.options, c.Options())
		s.mu.Unlock()
		e := event(ActionSetOptions)
		e.serial = uint64(n)
		s.add(&e)
	}
}

// segment records a change of a segment.
func (l *historyLog) segment(a Action, p device.Ptr, bytes int64, stream uint64, pool *placement.Pool, stack []uintptr) {
	if h := l.Load(); h != nil {
		e := event(a)
		e.address, e.size, e.stream, e.pool = p, bytes, stream, pool
		e.setStack(stack)
		h.add(&e)
	}
}
