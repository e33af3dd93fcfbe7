//go:build cuda

package cuda

import (
	"sync"
	"sync/atomic"
)

// position is a stream's progress. An event recorded at a point where the stream is known to be
// done is complete, and so is every event recorded earlier on the stream, so the driver need not be
// called for them. The driver takes some 0.15 µs for a record and 0.2 µs for a query. A cache that
// frees many blocks used by an idle stream, or that queries the events of one point repeatedly,
// needs only one query.
//
// An operation is counted when its call returns, and a record takes the count at the start of its
// call. So the count of a record includes every call that returned before it, and excludes work
// that only a later record must wait for.
type position struct {
	queued atomic.Uint64 // number of operations whose calls have returned
	done   atomic.Uint64 // number of these that are known to be complete
}

// idle reports whether everything that had been queued is known to be complete.
func (p *position) idle() bool {
	queued := p.queued.Load()
	return p.done.Load() >= queued
}

// reached marks the first n operations as complete.
func (p *position) reached(n uint64) {
	for {
		done := p.done.Load()
		if done >= n || p.done.CompareAndSwap(done, n) {
			return
		}
	}
}

// place is the point of an event's last record. It is read without a lock: changes is odd during a
// change, and differs after it. The lock orders concurrent records, so that the place is that of
// the driver's last record.
type place struct {
	mu      sync.Mutex
	changes atomic.Uint64
	stream  atomic.Pointer[stream]
	queued  atomic.Uint64 // of the stream, at the record
}

// set calls record and stores the present point of s. A captured event has no such point.
func (p *place) set(s *stream, captured bool, record func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes.Add(1)
	defer p.changes.Add(1)
	queued := s.position.queued.Load()
	err := record()
	if err == nil {
		if captured {
			s = nil
		}
		p.stream.Store(s)
		p.queued.Store(queued)
	}
	return err
}

// visit is a consistent copy of a place.
type visit struct {
	of      *place
	changes uint64
	stream  *stream
	queued  uint64
}

// visit returns the event's place, without a stream if the place is changing.
func (p *place) visit() visit {
	v := visit{of: p, changes: p.changes.Load(), stream: p.stream.Load(), queued: p.queued.Load()}
	if v.changes%2 == 1 || p.changes.Load() != v.changes {
		v.stream = nil
	}
	return v
}

// complete reports whether the event is known to be complete.
func (v visit) complete() bool { return v.stream != nil && v.stream.position.done.Load() >= v.queued }

// learn stores that the driver reported the event complete, unless the event was recorded again
// meanwhile.
func (v visit) learn() {
	if v.stream != nil && v.of.changes.Load() == v.changes {
		v.stream.position.reached(v.queued)
	}
}
