package host

import (
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

var _ device.ReplayNotifier = (*stream)(nil)

// notice is a function that is called for each replay. Its address carries the edge from the
// goroutine that captured to those that replay, as an operation's does.
type notice struct {
	f    func()
	next *notice
}

// notices holds the functions of a capture; guarded by the capture's lock.
type notices struct{ first, last *notice }

// OnReplay adds f to the capture that the stream is in.
func (s *stream) OnReplay(f func()) bool {
	c := s.member.capture()
	return c != nil && f != nil && c.onReplay(s, f)
}

//go:norace
func (c *capture) onReplay(s *stream, f func()) bool {
	n := &notice{f: f}
	race.ReleaseMerge(unsafe.Pointer(n))
	c.lock()
	ok := !c.ended && s.member.capture() == c
	if ok {
		if c.told.last == nil {
			c.told.first = n
		} else {
			c.told.last.next = n
		}
		c.told.last = n
	}
	c.unlock()
	return ok
}

// tell calls the functions from n on.
//
//go:norace
func (n *notice) tell() {
	for ; n != nil; n = n.next {
		race.Acquire(unsafe.Pointer(n))
		n.f()
	}
}
