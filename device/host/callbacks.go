package host

import (
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// callbacks runs the functions of OnDone, one after the other, on a goroutine that lives while there are any.
//
// In race builds each callback runs on a goroutine of its own, for which that one waits: one goroutine for all would
// order each callback after everything that came before the callbacks before it. As the detector orders a
// goroutine after all that its creator has seen, whatever is hidden, the creator is a goroutine that has seen
// nothing: one that lives as long as the device.
type callbacks struct {
	dev  *Device
	mu   sync.Mutex
	more sync.Cond // in race builds: head or closed were set
	idle sync.Cond // running became false
	head *callback
	last *callback

	running bool
	closed  bool

	// The detector forgets what a goroutine did soon after it ends, so in race builds the last few callbacks' wait.
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
	// Of race builds: fn has returned, the goroutine may end.
	done, leave chan struct{}
}

// push queues fn. The worker that calls it releases what it has done so far to fn.
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

// leave starts another goroutine in place of one that a callback ended with runtime.Goexit.
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

// linger keeps the goroutine of cb until there have been some more.
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
