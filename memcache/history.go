package memcache

import (
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The history is a ring of the last events under one lock: it is for the minute before a failure,
// and its memory is bounded. A log of all entries goes to readers as fast as it is made
// (historystream.go). Off, both cost a hit one load of a pointer.

// history is where events go. It is never changed, but replaced: an event looks at one pointer.
type history struct {
	stacks Stacks
	ring   *historyRing   // or nil
	stream *HistoryStream // or nil
}

// add enters an event, with the stack of the call as deep as its receivers want it.
func (h *history) add(e *historyEvent) {
	if h.stream != nil {
		h.stream.add(e)
	}
	if h.ring != nil {
		h.ring.add(e.entry(time.Now()))
	}
}

// stack is the caller's stack, if the history wants it of such a call. It is taken before any lock, since a new one takes
// microseconds.
func (h *history) stack(level Stacks) []uintptr {
	if h.stacks < level {
		return nil
	}
	if h.stream != nil {
		return h.stream.sites.caller()
	}
	return h.ring.sites.caller()
}

// historyLog is where a cache's events go, or nowhere: then an event costs the look at one pointer. Its methods may be called with
// any lock.
type historyLog struct{ atomic.Pointer[history] }

// set makes the history what it is from here on. shards.mu is held.
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

// mark enters an event that only a stream has.
func (l *historyLog) mark(a Action, stream uint64, size int64) { l.markAt(a, stream, 0, size) }

// markAt is mark of an event that has an address.
func (l *historyLog) markAt(a Action, stream uint64, p device.Ptr, size int64) {
	if h := l.Load(); h != nil && h.stream != nil {
		e := event(a)
		e.stream, e.address, e.size = stream, p, size
		h.stream.add(&e)
	}
}

// markPool is mark of what is done to a private pool alone; nil: the default pool and the released ones.
func (l *historyLog) markPool(a Action, p *placement.Pool) {
	if h := l.Load(); h != nil && h.stream != nil {
		e := event(a)
		e.pool = p
		h.stream.add(&e)
	}
}

// options enters the new options without the limit; the limit's entry follows.
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

// segment records what happened to memory from the driver.
func (l *historyLog) segment(a Action, p device.Ptr, bytes int64, stream uint64, pool *placement.Pool, stack []uintptr) {
	if h := l.Load(); h != nil {
		e := event(a)
		e.address, e.size, e.stream, e.pool = p, bytes, stream, pool
		e.setStack(stack)
		h.add(&e)
	}
}
