package timeline

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// clock places a device's times among the host's, by an event of which both are known. Nobody who launches waits for that
// event: it may be behind work that the same goroutine has yet to release. A goroutine of the clock's own does, until Close.
//
// The two clocks drift apart, and a goroutine may hear of an event late. So each kernel corrects the clock by what is known of it for
// sure: it began after it was launched, and ended before somebody found it done.
type clock struct {
	dev     device.Device
	renewal time.Duration

	placed chan struct{} // closed when the goroutine has ended
	failed atomic.Bool   // set before that: there is no event
	event  device.Event  // once placed; who holds the drain may change it
	at     time.Duration // when it was complete, on the host
	own    time.Duration // the same by the clock itself, which nothing corrects
}

// reading is what a kernel's events say.
type reading struct {
	done     bool
	from, to time.Duration
	own      time.Duration // from, by the clock itself
}

// clockOf is the clock of the stream's device; nil: there is none, and Flush tells why.
func (k *kernels) clockOf(t *Timeline, s device.Stream) *clock {
	id := s.Device().ID()
	k.mu.Lock()
	c, closed := k.clocks[id], k.closed
	fresh := c == nil && !closed
	if fresh {
		if k.clocks == nil {
			k.clocks = make(map[uint64]*clock)
		}
		c = &clock{dev: s.Device(), renewal: k.renewal, placed: make(chan struct{})}
		k.clocks[id] = c
	}
	k.mu.Unlock()
	if closed {
		return nil
	}
	if fresh {
		if e := k.mark(s); e != nil {
			go k.place(t, c, e)
		} else {
			k.fail(c)
		}
	}
	if c.failed.Load() {
		return nil
	}
	return c
}

// place waits for a clock's first event.
func (k *kernels) place(t *Timeline, c *clock, e device.Event) {
	_, err := race.Quietly(func() (struct{}, error) { return struct{}{}, e.Synchronize(k.closing) })
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			k.keep(fmt.Errorf("waiting for the device's clock: %w", err))
		}
		k.discard(e)
		k.fail(c)
		return
	}
	c.event, c.at = e, t.now()
	close(c.placed)
}

// fail ends a clock that could not be placed. The next launch makes another one.
func (k *kernels) fail(c *clock) {
	c.failed.Store(true)
	k.mu.Lock()
	if k.clocks[c.dev.ID()] == c {
		delete(k.clocks, c.dev.ID())
	}
	k.mu.Unlock()
	close(c.placed)
}

// isPlaced reports whether the clock has an event, or never will. With a context it waits.
func (c *clock) isPlaced(ctx context.Context) (bool, error) {
	if ctx == nil {
		select {
		case <-c.placed:
			return true, nil
		default:
			return false, nil
		}
	}
	select {
	case <-c.placed:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// renewal is how far from its event a clock may be: a device may tell long times in few digits.
const renewal = time.Second

func (c *clock) stale(r reading) bool { return r.to-c.at > c.renewal }

// renew makes e, at the end of what was read, the clock's event, and returns the one that it had.
func (c *clock) renew(e device.Event, r reading) (old device.Event) {
	old, c.event, c.at, c.own = c.event, e, r.to, r.own+r.to-r.from
	return old
}

// read reads the events of a kernel if it is done. The race detector does not see the look at them: what the timeline
// finds out must not order the program's own accesses, or a missing event of the program would go unnoticed. The clock is placed, and
// the drain held.
func (c *clock) read(t *Timeline, l kernel, done func(device.Event) (bool, error)) (reading, error) {
	dev, event, at, own := c.dev, c.event, c.at, c.own // the detector does not see either that what follows is over before they change
	r, err := race.Quietly(func() (r reading, err error) {
		if r.done, err = done(l.after); err != nil || !r.done {
			return r, err
		}
		since, err := dev.Elapsed(event, l.before)
		if err != nil {
			return r, err
		}
		took, err := dev.Elapsed(l.before, l.after)
		r.from, r.own = at+since, own+since
		r.to = r.from + took
		return r, err
	})
	if err == nil && r.done {
		by := correction(r, l.launched, t.now())
		c.at, r.from, r.to = c.at+by, r.from+by, r.to+by
	}
	return r, err
}

// correction is by how much a clock is off that says that a kernel began before it was launched, or ended after it was found done.
func correction(r reading, launched, found time.Duration) time.Duration {
	switch {
	case r.to > found:
		return found - r.to
	case r.from < launched:
		return min(launched-r.from, found-r.to)
	}
	return 0
}
