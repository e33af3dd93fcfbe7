package host

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// depth is the number of operations, the running one included, with which a queue is full.
const depth = 1024

// Whoever waits for the other side of a queue looks for it a while before it sleeps: to wake a goroutine costs both sides some
// microseconds, as much as several small operations. spins rounds of looks take 10 to 20 µs, and between them other goroutines
// may have the processor. After each look it pauses for some 20 ns: where both sides touch a line all the time, the processors
// take it from each other.
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

// queue is a stream's queue: a list to which those who queue add under a lock, and from which the worker takes without one. Where
// both are at work neither waits for the other, and an operation costs one line of the processors' caches, its own.
//
// What the two sides count, queued and done, each writes alone. Who waits says so in waiting before it looks at done once more,
// and the worker looks at waiting after it has written done: one of the two sees the other.
//
// Nothing here makes an edge that the race detector sees: the edges are those of the operations' own addresses (push to
// start), of idle (all that is done, for a reader of an empty queue) and of the records.
type queue struct {
	mu      sync.Mutex
	work    sync.Cond   // the worker waits for an operation, or for closed
	room    sync.Cond   // who queues waits for room, who closes for gone
	last    *op         // the newest
	queued  int64       // operations that were ever queued
	seen    int64       // of done, as those who queue have last looked at it
	waiters *record     // of Synchronize, the newest first
	spare   *op         // for reuse, a list
	asleep  bool        // the worker waits
	started bool        // the worker's goroutine runs
	closed  atomic.Bool // nothing is queued any more
	gone    atomic.Bool // everything is done and the worker has ended
	_       [64]byte

	waiting atomic.Int64  // goroutines that wait in room, and records in waiters; written under mu, seldom, and read by the worker
	claimed atomic.Bool   // somebody runs an operation in place of the worker; see brief.go
	timed   atomic.Bool   // a timed event was recorded: busy time counts
	worked  time.Duration // in claims, since timed; by the owner of the claim
	_       [64]byte

	taken    *op                // by the worker, the last one; its next one follows
	done     atomic.Int64       // operations
	returned atomic.Pointer[op] // by the worker, for reuse, a list
	slept    time.Duration      // that the worker waited for an operation; its own
	idle     byte               // its address carries the edge
	_        [64]byte
}

//go:norace
func (q *queue) init() {
	q.work.L = &q.mu
	q.room.L = &q.mu
}

// full looks at what the worker writes only when it must. The caller holds the lock.
//
//go:norace
func (q *queue) full() bool {
	if q.queued-q.seen < depth {
		return false
	}
	q.seen = q.done.Load()
	return q.queued-q.seen >= depth
}

// push queues o, waiting for room. It reports whether the queue was open, and whether the caller must start the
// worker.
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
	q.queued++ // before the worker can be done with it
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

// awaitRoom looks for room for a while. The caller holds the lock, which is given up meanwhile.
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

// next takes the next operation, waiting for one. It returns nil when the queue is closed and empty.
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

// await is the worker's waiting for the next operation.
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

// takeWaiters takes the records out that are complete when n operations are done. The caller holds the lock.
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

// tail returns the record of everything queued so far, made on demand if make is set. done says that all of it
// is done, and is acquired.
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
	if done { // under the lock: nothing else can have begun
		race.Enable()
		race.Acquire(unsafe.Pointer(&q.idle))
		race.Disable()
	}
	q.mu.Unlock()
	race.Enable()
	return r, done
}

// note notes a waiter for the end of all n operations, unless they have ended just now. The caller holds the lock.
//
//go:norace
func (q *queue) note(n int64) (r *record, done bool) {
	if q.waiters != nil && q.waiters.after == n { // others wait: the worker completes it, also if it is done by now
		return q.waiters, false
	}
	r = &record{after: n, next: q.waiters}
	q.waiters = r
	q.waiting.Add(1)
	if q.done.Load() != n {
		return r, false
	}
	q.waiters = r.next // perhaps the worker was done before it could see that somebody waits
	q.waiting.Add(-1)
	return nil, true
}

// close refuses what comes later and waits until the worker has ended. It reports whether it was the first.
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

// end says that the worker has ended.
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

// isGone reports whether everything is done for good, and acquires it if so: who knows it may reuse memory
// that the stream used.
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
