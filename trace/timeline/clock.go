package timeline

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// clock places a device's times among the host's.
type clock struct {
	dev     device.Device
	renewal time.Duration
	once    sync.Once
	ok      bool          // once is done and event could be made
	event   device.Event  // who holds the drain may change it
	at      time.Duration // when it was complete
}

// reading is what a kernel's events say.
type reading struct {
	done     bool
	from, to time.Duration
}

// clockOf is the clock of the stream's device; nil: there is none, and Flush tells why.
func (k *kernels) clockOf(t *Timeline, s device.Stream) *clock {
	id := s.Device().ID()
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return nil
	}
	c := k.clocks[id]
	if c == nil {
		if k.clocks == nil {
			k.clocks = make(map[uint64]*clock)
		}
		c = &clock{dev: s.Device(), renewal: k.renewal}
		k.clocks[id] = c
	}
	k.mu.Unlock()
	c.once.Do(func() {
		e := k.mark(s)
		if e == nil {
			return
		}
		_, err := race.Quietly(func() (struct{}, error) { return struct{}{}, e.Synchronize(context.Background()) })
		if err != nil {
			k.keep(fmt.Errorf("waiting for the device's clock: %w", err))
			k.discard(e)
			return
		}
		c.ok, c.event, c.at = true, e, t.now()
	})
	if !c.ok {
		return nil
	}
	return c
}

// renewal is how far from its event a clock may be: a device may tell long times in few digits.
const renewal = time.Second

func (c *clock) stale(r reading) bool { return r.to-c.at > c.renewal }

// renew makes e, complete at a known time, the clock's event, and returns the one that it had.
func (c *clock) renew(e device.Event, at time.Duration) (old device.Event) {
	old, c.event, c.at = c.event, e, at
	return old
}

// read reads the events of a kernel if it is done. The race detector does not see the look at them: what the timeline
// finds out must not order the program's own accesses, or a missing event of the program would go unnoticed.
func (c *clock) read(l kernel, done func(device.Event) (bool, error)) (reading, error) {
	dev, event, at := c.dev, c.event, c.at // the detector does not see either that what follows is over before they change
	return race.Quietly(func() (r reading, err error) {
		if r.done, err = done(l.after); err != nil || !r.done {
			return r, err
		}
		since, err := dev.Elapsed(event, l.before)
		if err != nil {
			return r, err
		}
		took, err := dev.Elapsed(l.before, l.after)
		r.from = at + since
		r.to = r.from + took
		return r, err
	})
}
