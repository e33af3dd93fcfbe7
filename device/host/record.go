package host

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// record is one point in one stream, complete when everything queued before it is done. Each Record of an
// event makes a new one, so that what waited for an earlier one is unaffected, and so that the race detector
// sees the edge of that record alone.
type record struct {
	done atomic.Bool
	at   time.Duration // on the device's clock; valid when done
	idle time.Duration // of the stream's, up to then; valid when done
	late *Device       // the dry device that completes it; nil: it is not of one
	on   uint64        // the stream's ID; valid when done, and 0 for what is no event's

	mu   sync.Mutex
	wake chan struct{} // made by the first that waits

	// Of Synchronize: it is complete when as many operations of the queue are done, and the next one is of fewer.
	after int64
	next  *record
}

// release lets what follows acquire see what came before.
//
//go:norace
func (r *record) release() { race.ReleaseMerge(unsafe.Pointer(r)) }

//go:norace
func (r *record) acquire() { race.Acquire(unsafe.Pointer(r)) }

//go:norace
func (r *record) complete(at time.Duration) {
	race.Disable()
	r.at = at
	r.mu.Lock()
	r.done.Store(true)
	if r.wake != nil {
		close(r.wake)
	}
	r.mu.Unlock()
	race.Enable()
}

// query reports whether r is complete, and acquires it if so.
//
//go:norace
func (r *record) query() bool {
	race.Disable()
	done := r.done.Load()
	race.Enable()
	if done {
		r.acquire()
	}
	return done
}

// wait waits until r is complete, and acquires it, or until cancel is closed. A nil cancel never is.
//
//go:norace
func (r *record) wait(cancel <-chan struct{}) bool {
	if r.query() {
		return true
	}
	if r.late != nil {
		r.late.catchUp()
	}
	race.Disable()
	r.mu.Lock()
	if r.wake == nil {
		r.wake = make(chan struct{})
	}
	wake, done := r.wake, r.done.Load()
	r.mu.Unlock()
	if !done {
		select {
		case <-wake:
			done = true
		case <-cancel:
		}
	}
	race.Enable()
	if done {
		r.acquire()
	}
	return done
}
