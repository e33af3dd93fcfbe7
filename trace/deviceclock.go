package trace

import (
	"errors"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// Timed events measure intervals, not points in time. A device clock maps them to the host's clock.
// It records an event, the anchor, on a stream of its own, which is always empty, so the device
// reaches it as soon as it is recorded. The two clocks drift apart, and some drivers return the
// time between two events in 32 bits. A new anchor is therefore recorded each second while steps
// are traced.

// anchorAge is how long an anchor is used.
const anchorAge = time.Second

// deviceClock opens its stream at the first use, and tries again if that failed. The zero
// deviceClock is ready.
type deviceClock struct {
	opening sync.Mutex // held while the stream is opened

	mu     sync.Mutex // not held while the driver is called
	stream device.Stream
	closed bool
	last   *anchor
}

// anchor is an event, and the time on the host's clock at which the device reached it.
type anchor struct {
	event device.Event
	at    time.Time
	users int // steps, and the clock for the last one; guarded by deviceClock.mu

	reached bool // the event; guarded by the drain of the clock's owner
}

// open returns the clock's stream; after close it is nil.
func (c *deviceClock) open(dev device.Device) (device.Stream, error) {
	c.opening.Lock()
	defer c.opening.Unlock()
	c.mu.Lock()
	s, closed := c.stream, c.closed
	c.mu.Unlock()
	if s != nil || closed {
		return s, nil
	}
	s, err := dev.NewStream(device.StreamOptions{})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if closed = c.closed; !closed {
		c.stream = s
	}
	c.mu.Unlock()
	if closed { // while it was opened
		return nil, s.Close()
	}
	return s, nil
}

// take returns the present anchor, to be released with give; after close it is nil. Each call has
// the same dev.
func (c *deviceClock) take(dev device.Device) (*anchor, error) {
	c.mu.Lock()
	a, closed := c.last, c.closed
	fresh := a != nil && time.Since(a.at) < anchorAge
	if fresh && !closed {
		a.users++
	}
	c.mu.Unlock()
	switch {
	case closed:
		return nil, nil
	case fresh:
		return a, nil
	}
	s, err := c.open(dev)
	if s == nil {
		return nil, err
	}
	e, err := dev.NewEvent(device.EventOptions{Timed: true})
	if err != nil {
		return nil, err
	}
	next := &anchor{event: e, at: time.Now(), users: 2}
	if err := s.Record(e); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	c.mu.Lock()
	old := c.last
	if c.last = next; c.closed {
		c.last, next.users = nil, 1
	}
	c.mu.Unlock()
	return next, c.give(old)
}

// give releases an anchor that take returned, once; nil does nothing.
func (c *deviceClock) give(a *anchor) error {
	if a == nil {
		return nil
	}
	c.mu.Lock()
	a.users--
	unused := a.users == 0
	c.mu.Unlock()
	if unused {
		return a.event.Close()
	}
	return nil
}

// close ends the clock. It is idempotent.
func (c *deviceClock) close() error {
	c.mu.Lock()
	last, s := c.last, c.stream
	c.last, c.closed = nil, true
	c.mu.Unlock()
	err := c.give(last)
	if s == nil {
		return err
	}
	return errors.Join(err, s.Close())
}
