package backend

import (
	"sync"
	"sync/atomic"
)

// Gate counts the calls that use an object of a driver. Once it is shut it admits no more calls,
// and when the last call has left, the object can be released. Entering and leaving take one atomic
// addition each.
type Gate struct {
	// Owner.Emptied is called once, when the gate is shut and empty. Set Owner before Shut. It is
	// an interface because a method value would cost one allocation for each gate.
	Owner interface{ Emptied() }

	n    atomic.Int64 // number of calls inside; negative when shut
	once sync.Once    // guards Emptied
}

const shut = -1 << 62

// Enter begins a call and returns true, unless the gate is shut. Leave ends the call.
func (g *Gate) Enter() bool {
	if g.n.Add(1) > 0 {
		return true
	}
	g.Leave()
	return false
}

// Leave ends a call that Enter admitted.
func (g *Gate) Leave() {
	if g.n.Add(-1) == shut {
		g.once.Do(g.Owner.Emptied)
	}
}

// Shut makes later calls of Enter return false. It must be called only once.
func (g *Gate) Shut() {
	if g.n.Add(shut) == shut {
		g.once.Do(g.Owner.Emptied)
	}
}

// ShutAndWait is Shut for a gate without an owner. It returns when no call is inside any more.
func (g *Gate) ShutAndWait() {
	empty := make(signal)
	g.Owner = empty
	g.Shut()
	<-empty
}

// signal is closed when a gate is shut and empty.
type signal chan struct{}

func (s signal) Emptied() { close(s) }
