package host

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// record is one point in one stream, complete when everything queued before it is done. Each Record
// of an event makes a new one, so that waits for an earlier one are unaffected and the race
// detector sees the edge of that record alone.
type record struct {
	done atomic.Bool
	at   time.Duration // by the device's clock; valid when done
	idle time.Duration // the stream's idle time until then; valid when done
	late *Device       // the dry device that completes it, or nil
	on   uint64        // the stream's ID, or 0 for a record without an event; valid when done

	mu   sync.Mutex
	wake chan struct{} // made by the first waiter

	// For Synchronize: the record is complete when after operations of the queue are done. next is
	// the waiter before it, for fewer operations.
	after int64
	next  *record
}

// release lets those that acquire see everything before it.
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

// query reports whether r is complete. If so it acquires.
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

// wait waits until r is complete, and acquires, or until cancel is closed. A nil cancel is never
// closed.
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
