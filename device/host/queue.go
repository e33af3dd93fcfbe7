package host

import (
	"sync"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// depth is the number of operations, the running one included, with which a queue is full.
const depth = 1024

// queue is a stream's queue. Its lock makes no edge that the race detector sees: the edges are those of the
// operations' own addresses (push to start), of idle (all that is done, for who finds the queue empty) and
// of the records.
type queue struct {
	mu      sync.Mutex
	work    sync.Cond     // the worker waits for an operation, or for closed
	room    sync.Cond     // who queues waits for room, who closes for gone
	head    *op           // the oldest that is not running
	last    *op           // the newest that is not done
	n       int           // operations that are not done
	asleep  bool          // the worker waits
	waiting int           // goroutines that wait in room
	started bool          // the worker's goroutine runs
	closed  bool          // nothing is queued any more
	gone    bool          // everything is done and the worker has ended
	idle    byte          // its address carries the edge
	slept   time.Duration // that the worker waited for an operation; its own
}

//go:norace
func (q *queue) init() {
	q.work.L = &q.mu
	q.room.L = &q.mu
}

// push queues o, waiting for room. It reports whether the queue was open, and whether the caller must start the
// worker.
//
//go:norace
func (q *queue) push(o *op) (ok, start bool) {
	race.ReleaseMerge(unsafe.Pointer(o))
	race.Disable()
	q.mu.Lock()
	q.waiting++
	for q.n >= depth && !q.closed {
		q.room.Wait()
	}
	q.waiting--
	if q.closed {
		q.mu.Unlock()
		race.Enable()
		return false, false
	}
	if o.event != nil {
		o.event.last.Store(o.rec)
	}
	if q.head == nil {
		q.head = o
	} else {
		q.last.next = o
	}
	q.last = o
	q.n++
	start = !q.started
	q.started = true
	if q.asleep {
		q.asleep = false
		q.work.Signal()
	}
	q.mu.Unlock()
	race.Enable()
	return true, start
}

// next takes the next operation, waiting for one. It returns nil when the queue is closed and empty.
//
//go:norace
func (q *queue) next() *op {
	race.Disable()
	q.mu.Lock()
	if q.head == nil && !q.closed {
		began := time.Now()
		for q.head == nil && !q.closed {
			q.asleep = true
			q.work.Wait()
		}
		q.slept += time.Since(began)
	}
	o := q.head
	if o != nil {
		q.head = o.next
	}
	q.mu.Unlock()
	race.Enable()
	if o != nil {
		race.Acquire(unsafe.Pointer(o))
	}
	return o
}

// finish marks the running operation as done.
//
//go:norace
func (q *queue) finish(o *op) {
	race.ReleaseMerge(unsafe.Pointer(&q.idle))
	race.Disable()
	q.mu.Lock()
	waiter := o.waiter
	q.n--
	if q.n == 0 {
		q.last = nil
	}
	if q.waiting > 0 {
		q.room.Signal()
	}
	q.mu.Unlock()
	race.Enable()
	if waiter != nil {
		waiter.release()
		waiter.complete(0)
	}
}

// tail returns the record of everything queued so far, made on demand if make is set. done says that all of it
// is done, and is acquired.
//
//go:norace
func (q *queue) tail(make bool) (r *record, done bool) {
	race.Disable()
	q.mu.Lock()
	switch {
	case q.n == 0: // under the lock: nothing else can have begun
		done = true
		race.Enable()
		race.Acquire(unsafe.Pointer(&q.idle))
		race.Disable()
	case make:
		if q.last.waiter == nil {
			q.last.waiter = new(record)
		}
		r = q.last.waiter
	}
	q.mu.Unlock()
	race.Enable()
	return r, done
}

// close refuses what comes later and waits until the worker has ended. It reports whether it was the first.
//
//go:norace
func (q *queue) close() (first bool) {
	race.Disable()
	q.mu.Lock()
	first = !q.closed
	q.closed = true
	q.work.Signal()
	q.room.Broadcast()
	if !q.started {
		q.gone = true
	}
	q.waiting++
	for !q.gone {
		q.room.Wait()
	}
	q.waiting--
	q.mu.Unlock()
	race.Enable()
	race.Acquire(unsafe.Pointer(&q.idle))
	return first
}

// end says that the worker has ended.
//
//go:norace
func (q *queue) end() {
	race.Disable()
	q.mu.Lock()
	q.gone = true
	q.room.Broadcast()
	q.mu.Unlock()
	race.Enable()
}

//go:norace
func (q *queue) isClosed() bool {
	race.Disable()
	q.mu.Lock()
	closed := q.closed
	q.mu.Unlock()
	race.Enable()
	return closed
}

// isGone reports whether everything is done for good, and acquires it if so: who knows it may reuse memory
// that the stream used.
//
//go:norace
func (q *queue) isGone() bool {
	race.Disable()
	q.mu.Lock()
	gone := q.gone
	q.mu.Unlock()
	race.Enable()
	if gone {
		race.Acquire(unsafe.Pointer(&q.idle))
	}
	return gone
}
