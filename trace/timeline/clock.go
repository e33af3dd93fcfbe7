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

// clock maps a device's times to the host's, by an event whose time is known on both. A launch
// never waits for that event, because the event may be queued after work that the same goroutine
// has yet to release. A goroutine of the clock waits for it instead, until Close.
//
// The two clocks drift apart, and a goroutine may see an event late. Each kernel therefore corrects
// the clock: it must have begun after its launch, and ended before it was seen complete.
type clock struct {
	dev     device.Device
	renewal time.Duration

	placed chan struct{} // closed when the goroutine has ended
	failed atomic.Bool   // set before placed is closed: there is no event
	event  device.Event  // valid after placed is closed; guarded by the drain
	at     time.Duration // the host's time of the event
	own    time.Duration // the same by the clock itself, never corrected
}

// reading is the result of reading a kernel's events.
type reading struct {
	done     bool
	from, to time.Duration
	own      time.Duration // from, by the clock itself
}

// clockOf returns the clock of the stream's device; nil: there is none, and Flush returns the
// reason.
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

// fail ends a clock without an event. The next launch makes another one.
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

// renewal is how far from its event a clock may be used, because a device may return long times
// with few digits.
const renewal = time.Second

func (c *clock) stale(r reading) bool { return r.to-c.at > c.renewal }

// renew makes e, at the end of the reading, the clock's event, and returns the old one.
func (c *clock) renew(e device.Event, r reading) (old device.Event) {
	old, c.event, c.at, c.own = c.event, e, r.to, r.own+r.to-r.from
	return old
}

// read reads the events of a kernel if it is complete. The reads are hidden from the race detector.
// Otherwise they would order the program's own accesses, and an event that is missing in the
// program would go unnoticed. The clock is placed, and the drain is held.
func (c *clock) read(t *Timeline, l kernel, done func(device.Event) (bool, error)) (reading, error) {
	// Copies, because the race detector does not see that Quietly is over before these change.
	dev, event, at, own := c.dev, c.event, c.at, c.own
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

// correction returns the amount by which a clock is wrong, if it places a kernel's begin before the
// launch, or its end after it was seen complete.
func correction(r reading, launched, found time.Duration) time.Duration {
	switch {
	case r.to > found:
		return found - r.to
	case r.from < launched:
		return min(launched-r.from, found-r.to)
	}
	return 0
}
