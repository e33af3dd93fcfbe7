package host

import (
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// callbacks runs the functions of OnDone one after the other on a goroutine that exists only while
// there are any.
//
// In race builds each callback runs on its own goroutine, for which the loop waits. A single
// goroutine would order each callback after everything that preceded the callbacks before it. The
// detector orders a new goroutine after everything that its creator has seen, hidden or not. So the
// creator is a goroutine that has seen nothing: one that exists as long as the device.
type callbacks struct {
	dev  *Device
	mu   sync.Mutex
	more sync.Cond // in race builds: head or closed was set
	idle sync.Cond // running became false
	head *callback
	last *callback

	running bool
	closed  bool

	// In race builds the goroutines of the last few callbacks are kept, because the detector
	// forgets the accesses of a goroutine soon after it ends.
	lingering [16]*callback
	count     int
}

//go:norace
func (c *callbacks) init(d *Device) {
	c.dev = d
	c.more.L = &c.mu
	c.idle.L = &c.mu
	if race.Enabled {
		c.running = true
		go c.loop()
	}
}

type callback struct {
	fn   func(error)
	next *callback
	// In race builds: fn has returned; the goroutine may end.
	done, leave chan struct{}
}

// push queues fn. It releases what the calling worker has done so far to fn.
//
//go:norace
func (c *callbacks) push(fn func(error)) {
	cb := &callback{fn: fn}
	race.ReleaseMerge(unsafe.Pointer(cb))
	race.Disable()
	c.mu.Lock()
	if c.head == nil {
		c.head = cb
	} else {
		c.last.next = cb
	}
	c.last = cb
	if race.Enabled {
		c.more.Signal()
	} else if !c.running {
		c.running = true
		go c.loop()
	}
	c.mu.Unlock()
	race.Enable()
}

//go:norace
func (c *callbacks) loop() {
	race.Disable()
	var cb *callback
	defer c.leave(&cb)
	for {
		c.mu.Lock()
		for race.Enabled && c.head == nil && !c.closed {
			c.more.Wait()
		}
		cb = c.head
		if cb == nil {
			for range c.lingering {
				c.linger(nil)
			}
			c.running = false
			c.idle.Broadcast()
			c.mu.Unlock()
			return
		}
		c.head = cb.next
		c.mu.Unlock()
		if race.Enabled {
			cb.done, cb.leave = make(chan struct{}), make(chan struct{})
			go c.runAlone(cb)
			<-cb.done
			c.linger(cb)
		} else {
			c.run(cb)
		}
	}
}

// leave starts a new goroutine if a callback has ended this one with runtime.Goexit.
//
//go:norace
func (c *callbacks) leave(cb **callback) {
	if *cb != nil {
		go c.loop()
	}
	race.Enable()
}

//go:norace
func (c *callbacks) runAlone(cb *callback) {
	defer cb.finish()
	c.run(cb)
}

//go:norace
func (cb *callback) finish() {
	race.Disable()
	close(cb.done)
	<-cb.leave
	race.Enable()
}

// linger keeps the goroutine of cb until len(c.lingering) more callbacks have run.
//
//go:norace
func (c *callbacks) linger(cb *callback) {
	place := &c.lingering[c.count%len(c.lingering)]
	if *place != nil {
		close((*place).leave)
	}
	*place = cb
	c.count++
}

//go:norace
func (c *callbacks) run(cb *callback) {
	race.Acquire(unsafe.Pointer(cb))
	cb.fn(c.dev.stuckError())
}

// close waits until all callbacks have run. No stream may push any more.
//
//go:norace
func (c *callbacks) close() {
	race.Disable()
	c.mu.Lock()
	c.closed = true
	c.more.Signal()
	for c.running {
		c.idle.Wait()
	}
	c.mu.Unlock()
	race.Enable()
}
