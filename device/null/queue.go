package null

import (
	"context"

	"github.com/cistern-ml/cistern/device"
)

// op is one queued operation. It is done when everything before it is done and it is not held
// itself.
type op struct {
	gate  *gate       // of Hold
	on    *Stream     // of Wait: the stream of the event
	until uint64      // and the event's operation
	fn    func(error) // of OnDone
	event *event      // of Record of a timed event
	uses  []*span     // the memory that it names
}

type gate struct{ open bool }

func (o *op) held() bool {
	return o.gate != nil && !o.gate.open || o.on != nil && o.on.done <= o.until
}

// push queues o, advances the stream, and returns o's number. The caller holds dev.mu.
func (s *Stream) push(o op) uint64 {
	n := s.queued
	s.queued++
	for _, u := range o.uses {
		if u.kind != pinned { // else data has added the use
			u.uses++
		}
	}
	if o.on != nil {
		s.dev.waits++
	}
	s.queue = append(s.queue, o)
	s.busy.Store(true)
	s.advance()
	if s.busy.Load() && !s.listed {
		s.listed = true
		s.dev.streams[s] = struct{}{}
	}
	return n
}

// advance completes operations that are not held, here and on streams that wait. The caller holds
// dev.mu.
func (s *Stream) advance() {
	if !s.step() {
		return
	}
	for again := s.dev.waits > 0; again; {
		again = false
		for other := range s.dev.streams {
			again = other.step() || again
		}
	}
	s.dev.notify()
}

// step completes the operations that are not held. It reports whether there were any.
func (s *Stream) step() bool {
	before := s.done
	for s.head < len(s.queue) && !s.queue[s.head].held() {
		o := &s.queue[s.head]
		if o.on != nil {
			s.dev.waits--
		}
		if e := o.event; e != nil && e.stream == s && e.number == s.done {
			e.mark()
		}
		if o.fn != nil {
			s.dev.callbacks.add(s.dev, o.fn)
		}
		for _, u := range o.uses {
			if u.kind == pinned {
				u.letGo()
			} else {
				u.uses--
			}
		}
		*o = op{}
		s.head++
		s.done++
	}
	if s.head == len(s.queue) {
		s.queue, s.head = s.queue[:0], 0
		s.busy.Store(false)
		if s.listed {
			s.listed = false
			delete(s.dev.streams, s)
		}
	} else if s.head > len(s.queue)/2 {
		s.queue, s.head = s.queue[:copy(s.queue, s.queue[s.head:])], 0
	}
	return s.done > before
}

// past waits until operation n is done.
func (s *Stream) past(ctx context.Context, n uint64) error {
	_, err := s.dev.do(Call{Op: OpSynchronize, Stream: s.id, Context: ctx}, func(*Call) error { return nil })
	if err != nil {
		return err
	}
	return s.dev.wait(ctx, func() bool { return s.done > n })
}

// settle waits until everything queued so far is done.
func (s *Stream) settle(ctx context.Context) error {
	s.dev.mu.Lock()
	n, done := s.queued, s.done
	s.dev.mu.Unlock()
	if done == n {
		return nil
	}
	return s.past(ctx, n-1)
}

// callbacks run on one goroutine, from the first callback to Close.
type callbacks struct {
	list    []func(error)
	running chan struct{} // closed when the goroutine ends; nil before it begins
	closing bool
}

// add queues fn. The caller holds d.mu.
func (c *callbacks) add(d *Device, fn func(error)) {
	c.list = append(c.list, fn)
	if c.running == nil {
		c.running = make(chan struct{})
		go c.run(d)
	}
}

func (c *callbacks) run(d *Device) {
	defer close(c.running)
	for {
		var next func(error)
		_ = d.wait(context.Background(), func() bool {
			if len(c.list) > 0 {
				next, c.list = c.list[0], c.list[1:]
			}
			return next != nil || c.closing
		})
		if next == nil {
			return
		}
		next(nil)
	}
}

// close waits until all callbacks have run.
func (c *callbacks) close(d *Device) {
	d.mu.Lock()
	c.closing = true
	d.notify()
	running := c.running
	d.mu.Unlock()
	if running != nil {
		<-running
	}
}

var _ device.Stream = (*Stream)(nil)
