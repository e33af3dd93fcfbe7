//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"runtime"
	"sync"
	"time"
)

// callbacks runs the functions of OnDone one at a time on the device's completion goroutine. It
// polls an event for each, because a host function in the stream would block the stream, and would
// not run if the context is lost.
type callbacks struct {
	dev   *Device
	mu    sync.Mutex
	ready sync.Cond // something was pushed, or ended was set
	lines map[*stream]*line
	begun bool
	ended bool
	done  chan struct{} // closed by the goroutine
}

// line holds the callbacks of one stream in order.
type line struct{ first, last *callback }

type callback struct {
	event C.uint64_t
	fn    func(error)
	next  *callback
}

// While no event is complete the goroutine polls with pauses between these two.
const (
	shortPause = 10 * time.Microsecond
	longPause  = 200 * time.Microsecond
)

func (c *callbacks) init(d *Device) {
	c.dev = d
	c.ready.L = &c.mu
	c.lines = make(map[*stream]*line)
	c.done = make(chan struct{})
}

// push queues fn after the work that is queued on s.
func (c *callbacks) push(s *stream, fn func(error)) error {
	// Recording waits while the stream's queue is full, so it must not hold c.mu, which all streams
	// share.
	s.onDone.Lock()
	defer s.onDone.Unlock()
	h, err := c.dev.pool(false).get(c.dev)
	if err != nil {
		return err
	}
	if err := c.dev.check("OnDone", 0, C.cistern_event_record(c.dev.c, h, s.handle)); err != nil {
		c.dev.pool(false).Put(h)
		return err
	}
	k := &callback{event: h, fn: fn}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lines[s]
	if l == nil {
		l = &line{first: k}
		c.lines[s] = l
	} else {
		l.last.next = k
	}
	l.last = k
	if !c.begun {
		c.begun = true
		go c.run()
	}
	c.ready.Signal()
	return nil
}

func (c *callbacks) run() {
	defer close(c.done)
	pause := shortPause
	for c.wait() {
		ran := false
		for _, k := range c.complete() {
			k.fn(c.dev.stuckError())
			ran = true
		}
		if ran {
			pause = shortPause
			continue
		}
		runtime.Gosched()
		time.Sleep(pause)
		pause = min(2*pause, longPause)
	}
}

// wait waits for a callback. It returns false at the end.
func (c *callbacks) wait() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.lines) == 0 && !c.ended {
		c.ready.Wait()
	}
	return len(c.lines) > 0
}

// complete removes and returns the callbacks whose events are complete, or all of them if the
// context is lost.
func (c *callbacks) complete() (all []*callback) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s, l := range c.lines {
		for l.first != nil {
			done, err := c.dev.ready("OnDone", C.cistern_event_query(c.dev.c, l.first.event))
			if !done && err == nil {
				break
			}
			c.dev.pool(false).Put(l.first.event)
			all = append(all, l.first)
			l.first = l.first.next
		}
		if l.first == nil {
			delete(c.lines, s)
		}
	}
	return all
}

// close waits until every callback has run. The streams are closed, so that nothing is pushed any
// more.
func (c *callbacks) close() {
	c.mu.Lock()
	c.ended = true
	c.ready.Signal()
	begun := c.begun
	c.mu.Unlock()
	if begun {
		<-c.done
	}
}
