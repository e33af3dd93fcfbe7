//go:build cuda

package cuda

import (
	"sync"
	"sync/atomic"
)

// position is how far a stream has come. An event that is recorded where a stream is known to be done is complete, and so is every
// event of an earlier place of the stream: the driver, which takes some 0.15 µs for a record and 0.2 for a question, need not hear of them.
// Who frees many blocks that an idle stream has used, or asks for the events of one place again and again, asks it once.
//
// An operation is counted when its call returns, and a record counts itself at what had been counted when its call began. So what has
// returned before a record is in its count, and what a later record must wait for is not.
type position struct {
	queued atomic.Uint64 // operations whose calls have returned
	done   atomic.Uint64 // so many of them are known to be complete
}

// idle reports whether everything that had been queued is known to be complete.
func (p *position) idle() bool {
	queued := p.queued.Load()
	return p.done.Load() >= queued
}

// reached says that the first n operations are complete.
func (p *position) reached(n uint64) {
	for {
		done := p.done.Load()
		if done >= n || p.done.CompareAndSwap(done, n) {
			return
		}
	}
}

// place is where an event was recorded last. It is read without a lock: changes is odd while it changes, and another number after.
// The lock is for two records at once, of which the place must be that of the driver's last.
type place struct {
	mu      sync.Mutex
	changes atomic.Uint64
	stream  atomic.Pointer[stream]
	queued  atomic.Uint64 // of the stream, when it was recorded
}

// set calls record, after which the event is where s has come to; of a captured event that is not known.
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

// visit is a place as it was at one time.
type visit struct {
	of      *place
	changes uint64
	stream  *stream
	queued  uint64
}

// visit returns where the event is, or no stream if that changes just now.
func (p *place) visit() visit {
	v := visit{of: p, changes: p.changes.Load(), stream: p.stream.Load(), queued: p.queued.Load()}
	if v.changes%2 == 1 || p.changes.Load() != v.changes {
		v.stream = nil
	}
	return v
}

// complete reports whether the event is known to be complete.
func (v visit) complete() bool { return v.stream != nil && v.stream.position.done.Load() >= v.queued }

// learn notes that the driver called the event complete, unless the event was recorded again meanwhile.
func (v visit) learn() {
	if v.stream != nil && v.of.changes.Load() == v.changes {
		v.stream.position.reached(v.queued)
	}
}
