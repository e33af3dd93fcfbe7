package host

import (
	"runtime"
	"time"

	"github.com/cistern-ml/cistern/internal/race"
)

// A launch that is Brief runs on the goroutine that launches it, if the stream has nothing else to do: to hand it to the worker
// costs more than to run it, and to wake the worker much more. That goroutine claims the queue for it, and the worker begins
// nothing meanwhile. In race builds it is the worker's as all else is: a stream is a goroutine there.

// claim lets the caller run one operation in place of the worker, for endClaim. It reports whether the queue was empty; the first
// operation of all is the worker's.
//
//go:norace
func (q *queue) claim() bool {
	if race.Enabled {
		return false
	}
	q.mu.Lock()
	ok := q.started && !q.closed.Load() && q.done.Load() == q.queued
	if ok {
		q.queued++
		q.claimed.Store(true)
	}
	q.mu.Unlock()
	return ok
}

// endClaim says that the operation is done.
//
//go:norace
func (q *queue) endClaim() {
	q.claimed.Store(false) // first: whoever sees the queue empty may claim it
	q.finish()
}

// awaitClaim is the worker's waiting for the end of a claim.
//
//go:norace
func (q *queue) awaitClaim() {
	for i := 1; q.claimed.Load(); i++ {
		if i%looks == 0 {
			runtime.Gosched()
		}
		pause()
	}
}

// runClaimed runs a launch for which the queue was claimed.
//
//go:norace
func (s *stream) runClaimed(o *op) {
	defer s.finishClaimed(o) // also if the kernel ends the goroutine
	if !s.queue.timed.Load() {
		s.run(o)
		return
	}
	began := time.Now()
	s.run(o)
	s.queue.worked += time.Since(began)
}

//go:norace
func (s *stream) finishClaimed(o *op) {
	o.uses.drop()
	o.clear()
	s.queue.giveBack(o)
	s.queue.endClaim()
}
