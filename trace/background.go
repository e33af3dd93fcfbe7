package trace

import (
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// What is left to do of a step once it has ended is more than the step itself costs: to add up who
// held the memory, end its spans and tell whoever wants to know. A step with a Stream is not
// complete before the device is done anyway, so that a goroutine does it. It looks after some
// milliseconds rather than being woken: to wake a goroutine on another processor costs the training
// more than all that it does in End. So many steps are completed at a time. The goroutine ends when
// no step has ended for a while, or with Close.
//
// To ask whether an event is complete, and to read it, takes a driver as long as a launch. So the goroutine does that, too, and
// of many steps asks for few: a stream reaches their events in order.

const (
	// lookFirst is how long the goroutine waits while steps end; without further ones it waits twice as long each time.
	lookFirst = 8 * time.Millisecond
	// lookLast is the longest that it waits without another End. Steps that the device has not
	// finished by then are completed after the next End, or by Flush.
	lookLast = 250 * time.Millisecond
	// mostOpen is how many steps may be waiting before Ends help, and wait for who is at it.
	mostOpen = 4096
)

// background is the goroutine that completes the steps of a Profiler.
type background struct {
	stop    chan struct{} // closed by Close
	stopped sync.Once
	workers sync.WaitGroup // at most one

	// Guarded by Profiler.mu.
	working bool
	ends    int // since the goroutine looked
}

// completesLater reports whether the goroutine completes the step that has just ended; it begins if it has not. p.mu is held.
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

// work completes steps until there are no more for a while.
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

// end ends the goroutine, and waits for it.
func (b *background) end() {
	b.stopped.Do(func() { close(b.stop) })
	b.workers.Wait()
}
