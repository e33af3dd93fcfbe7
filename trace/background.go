package trace

import (
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// Completing an ended step costs more than the step itself: the profiler adds up the holders of the
// memory, ends spans and calls OnProfile. A step with a Stream is not complete before the device
// has finished, so a goroutine does this. The goroutine polls every few milliseconds, because
// waking a goroutine on another processor would cost the training more than everything else in End.
// It thus completes many steps at a time. It ends when no step has ended for a while, or with
// Close.
//
// A query of an event, and reading it, take a driver as long as a launch. The goroutine therefore
// does these, too, and queries the events of only a few of many steps, because a stream reaches
// them in order.

const (
	// lookFirst is the goroutine's wait while steps end; without further ones each wait is twice as
	// long.
	lookFirst = 8 * time.Millisecond
	// lookLast is the longest wait without another End. Steps that the device has not finished by
	// then are completed after the next End, or by Flush.
	lookLast = 250 * time.Millisecond
	// mostOpen is the number of pending steps from which on End, too, completes finished steps. It
	// then waits for the goroutine if that is completing some.
	mostOpen = 4096
)

// background is the goroutine that completes the steps of a Profiler.
type background struct {
	stop    chan struct{} // closed by Close
	stopped sync.Once
	workers sync.WaitGroup // at most one

	// Guarded by Profiler.mu.
	working bool
	ends    int // since the last poll
}

// completesLater reports whether the goroutine completes the step that has just ended. It starts
// the goroutine if necessary. p.mu is held.
func (p *Profiler) completesLater() bool {
	if p.closed.Load() {
		return false
	}
	p.ends++
	if !p.working {
		p.working = true
		p.workers.Go(p.work)
	}
	return true
}

// work completes steps until none have ended for a while.
func (p *Profiler) work() {
	wait := lookFirst
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-p.stop:
			return
		}
		p.mu.Lock()
		ended := p.ends > 0
		p.ends = 0
		p.mu.Unlock()
		p.poll(false, device.Event.Query)
		p.mu.Lock()
		if !ended && p.ends == 0 && wait >= lookLast {
			p.working = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		if wait *= 2; ended {
			wait = lookFirst
		}
		timer.Reset(wait)
	}
}

// end stops the goroutine and waits for it.
func (b *background) end() {
	b.stopped.Do(func() { close(b.stop) })
	b.workers.Wait()
}
