package host

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// depth is the number of operations at which a queue is full, including the running one.
const depth = 1024

// A goroutine that waits for the other side of a queue polls for a while before it sleeps, because
// waking it costs both sides some microseconds, as much as several small operations. Polling for
// spins rounds of looks takes 10 to 20 µs; after each round it yields the processor. After each
// look it pauses for some 20 ns, because constant polling would take the cache line away from the
// other side.
const (
	spins  = 64
	looks  = 8
	pauses = 64 // rounds of an empty loop
)

//go:norace
func pause() {
	for range pauses {
	}
}

// queue is a stream's queue: a list to which callers add under a lock, and from which the worker
// takes without a lock. If both are busy neither waits for the other, and an operation costs one
// cache line, its own.
//
// queued is written only by the callers, done only by the worker or the owner of a claim. A waiter
// increments waiting before it checks done again, and the worker reads waiting after it has written
// done, so one of the two sees the other.
//
// None of this creates an edge for the race detector. The edges are those of the operations'
// addresses (from push to start), of idle (from everything that is done to a reader of an empty
// queue) and of the records.
type queue struct {
	mu      sync.Mutex
	work    sync.Cond   // the worker waits for an operation or for closed
	room    sync.Cond   // callers wait for a free slot, or in close for gone
	last    *op         // the newest operation
	queued  int64       // number of operations ever queued
	seen    int64       // the callers' latest copy of done
	waiters *record     // records of Synchronize, newest first
	spare   *op         // list of operations for reuse
	asleep  bool        // the worker sleeps
	started bool        // the worker's goroutine runs
	closed  atomic.Bool // the queue accepts no operations
	gone    atomic.Bool // everything is done and the worker has ended
	_       [64]byte

	// Number of goroutines that wait in room and of records in waiters. It is written under mu,
	// rarely, and read by the worker.
	waiting atomic.Int64
	claimed atomic.Bool // a caller runs an operation in place of the worker; see brief.go
	timed   atomic.Bool // a timed event was recorded, so busy time is measured
	// Time in claims since timed was set; written by the owner of the claim, as is brief.
	worked time.Duration
	brief  op // the operation of a claim
	_      [64]byte

	// The operation that the worker took last; its next one follows.
	taken *op
	done  atomic.Int64 // number of operations done
	// List of operations that were returned for reuse.
	returned atomic.Pointer[op]
	slept    time.Duration // time that the worker waited for operations; its own
	idle     byte          // its address carries the edge
	_        [64]byte
}

//go:norace
func (q *queue) init() {
	q.work.L = &q.mu
	q.room.L = &q.mu
	q.brief.kind = opLaunch
}

// full reads the worker's counter only if it must. The caller holds the lock.
//
//go:norace
func (q *queue) full() bool {
	if q.queued-q.seen < depth {
		return false
	}
	q.seen = q.done.Load()
	return q.queued-q.seen >= depth
}

// push queues o, after waiting for a free slot. ok reports whether the queue was open, and start
// whether the caller must start the worker.
//
//go:norace
func (q *queue) push(o *op) (ok, start bool) {
	race.ReleaseMerge(unsafe.Pointer(o))
	race.Disable()
	q.mu.Lock()
	if q.full() {
		q.awaitRoom()
	}
	for q.full() && !q.closed.Load() {
		q.waiting.Add(1)
		if q.full() {
			q.room.Wait()
		}
		q.waiting.Add(-1)
	}
	if q.closed.Load() {
		q.mu.Unlock()
		race.Enable()
		return false, false
	}
	if o.event != nil {
		o.event.last.Store(o.rec)
		if o.event.captured.Load() != nil {
			o.event.captured.Store(nil)
		}
	}
	if start = !q.started; start {
		q.started = true
		q.taken = new(op) // as if one had run
		q.last = q.taken
	}
	q.queued++ // before the worker can complete it
	q.last.next.Store(o)
	q.last = o
	if q.asleep {
		q.asleep = false
		q.work.Signal()
	}
	q.mu.Unlock()
	race.Enable()
	return true, start
}

// awaitRoom polls for a free slot for a while. The caller holds the lock, which is released
// meanwhile.
//
//go:norace
func (q *queue) awaitRoom() {
	full := q.queued - depth
	q.mu.Unlock()
	for i := 0; i < spins*looks && q.done.Load() <= full; i++ {
		if i%looks == looks-1 {
			runtime.Gosched()
		}
		pause()
	}
	q.mu.Lock()
}

// next takes the next operation, waiting for one. It returns nil when the queue is closed and
// empty.
//
//go:norace
func (q *queue) next() *op {
	race.Disable()
	before := q.taken
	o := before.next.Load()
	if o == nil {
		o = q.await()
	}
	q.awaitClaim()
	if o != nil {
		q.taken = o
		q.giveBack(before)
	}
	race.Enable()
	if o != nil {
		race.Acquire(unsafe.Pointer(o))
	}
	return o
}

// await lets the worker wait for the next operation.
//
//go:norace
func (q *queue) await() *op {
	began := time.Now()
	o := q.taken.next.Load()
	for i := 0; i < spins*looks && o == nil; i++ {
		if i%looks == looks-1 {
			runtime.Gosched()
		}
		pause()
		o = q.taken.next.Load()
	}
	if o == nil {
		q.mu.Lock()
		for o = q.taken.next.Load(); o == nil && !q.closed.Load(); o = q.taken.next.Load() {
			q.asleep = true
			q.work.Wait()
		}
		q.mu.Unlock()
	}
	q.slept += time.Since(began)
	return o
}

// finish marks the running operation as done.
//
//go:norace
func (q *queue) finish() {
	race.ReleaseMerge(unsafe.Pointer(&q.idle))
	race.Disable()
	n := q.done.Add(1)
	var waiters *record
	if q.waiting.Load() > 0 {
		q.mu.Lock()
		q.room.Signal()
		waiters = q.takeWaiters(n)
		q.mu.Unlock()
	}
	race.Enable()
	for r := waiters; r != nil; r = r.next {
		r.release()
		r.complete(0)
	}
}

// takeWaiters removes and returns the records that are complete after n operations. The caller
// holds the lock.
//
//go:norace
func (q *queue) takeWaiters(n int64) *record {
	at := &q.waiters
	for *at != nil && (*at).after > n {
		at = &(*at).next
	}
	taken := *at
	*at = nil
	for r := taken; r != nil; r = r.next {
		q.waiting.Add(-1)
	}
	return taken
}

// tail returns the record of everything queued so far, made on demand if make is set. If all of it
// is done, it returns done instead, after an acquire.
//
//go:norace
func (q *queue) tail(make bool) (r *record, done bool) {
	race.Disable()
	q.mu.Lock()
	n := q.queued
	done = q.done.Load() == n
	if !done && make {
		r, done = q.note(n)
	}
	if done { // under the lock, because then nothing else can have begun
		race.Enable()
		race.Acquire(unsafe.Pointer(&q.idle))
		race.Disable()
	}
	q.mu.Unlock()
	race.Enable()
	return r, done
}

// note adds a waiter for the end of all n operations, unless they have just ended. The caller holds
// the lock.
//
//go:norace
func (q *queue) note(n int64) (r *record, done bool) {
	// Others wait, so the worker completes it, even if all are done by now.
	if q.waiters != nil && q.waiters.after == n {
		return q.waiters, false
	}
	r = &record{after: n, next: q.waiters}
	q.waiters = r
	q.waiting.Add(1)
	if q.done.Load() != n {
		return r, false
	}
	// The worker may have been done before it could see the waiter.
	q.waiters = r.next
	q.waiting.Add(-1)
	return nil, true
}

// close refuses later operations and waits until the worker has ended. It reports whether it was
// the first close.
//
//go:norace
func (q *queue) close() (first bool) {
	race.Disable()
	q.mu.Lock()
	first = !q.closed.Swap(true)
	q.work.Signal()
	q.room.Broadcast()
	if !q.started {
		q.gone.Store(true)
	}
	q.waiting.Add(1)
	for !q.gone.Load() {
		q.room.Wait()
	}
	q.waiting.Add(-1)
	q.mu.Unlock()
	race.Enable()
	race.Acquire(unsafe.Pointer(&q.idle))
	return first
}

// end marks the worker as ended.
//
//go:norace
func (q *queue) end() {
	race.Disable()
	q.mu.Lock()
	q.gone.Store(true)
	q.room.Broadcast()
	q.mu.Unlock()
	race.Enable()
}

//go:norace
func (q *queue) isClosed() bool {
	race.Disable()
	closed := q.closed.Load()
	race.Enable()
	return closed
}

// isGone reports whether the stream has ended and all its work is done. If so it acquires, because
// the caller may then reuse memory that the stream used.
//
//go:norace
func (q *queue) isGone() bool {
	race.Disable()
	gone := q.gone.Load()
	race.Enable()
	if gone {
		race.Acquire(unsafe.Pointer(&q.idle))
	}
	return gone
}
