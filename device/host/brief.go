package host

import (
	"runtime"
	"time"

	"github.com/cistern-ml/cistern/internal/race"
)

// A Brief launch runs on the goroutine that launches it if the stream has no other work, because
// handing it to the worker costs more than running it, and waking the worker costs much more. The
// goroutine claims the queue for the launch, and the worker begins no operation meanwhile. In race
// builds the worker runs these launches, too, because there a stream must be one goroutine.

// claim lets the caller run one operation, brief, in place of the worker; endClaim ends that. It
// reports whether it succeeded, which needs an empty queue whose worker has been started.
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

// endClaim marks the claimed operation as done.
//
//go:norace
func (q *queue) endClaim() {
	// First, because a goroutine that finds the queue empty may claim it.
	q.claimed.Store(false)
	q.finish()
}

// awaitClaim lets the worker wait for the end of a claim.
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

// runClaimed runs a launch for which the caller has claimed the queue.
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
	s.queue.endClaim()
}
