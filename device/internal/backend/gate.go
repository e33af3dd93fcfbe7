package backend

import (
	"sync"
	"sync/atomic"
)

// Gate counts the calls that use something of a driver, and lets none in once it is shut: what they use is given back
// when the last has left. Entering and leaving are one atomic addition each.
type Gate struct {
	// Owner is told, once, when the gate is shut and empty. It is set before the gate is shut; an interface, since a
	// function of the owner's would be an allocation for each gate.
	Owner interface{ Emptied() }

	n    atomic.Int64 // the calls inside; less than 0 when shut
	once sync.Once    // of Emptied
}

const shut = -1 << 62

// Enter begins a call, unless the gate is shut. Leave ends it.
func (g *Gate) Enter() bool {
	if g.n.Add(1) > 0 {
		return true
	}
	g.Leave()
	return false
}

// Leave ends a call that Enter let in.
func (g *Gate) Leave() {
	if g.n.Add(-1) == shut {
		g.once.Do(g.Owner.Emptied)
	}
}

// Shut lets nobody in any more. It is called once.
func (g *Gate) Shut() {
	if g.n.Add(shut) == shut {
		g.once.Do(g.Owner.Emptied)
	}
}

// ShutAndWait is Shut for a gate without an owner, and waits until nobody is inside.
func (g *Gate) ShutAndWait() {
	empty := make(signal)
	g.Owner = empty
	g.Shut()
	<-empty
}

// signal is closed when a gate is empty.
type signal chan struct{}

func (s signal) Emptied() { close(s) }
