//go:build cuda

package cuda

import (
	"sync"
	"sync/atomic"
)

// gate counts the calls that are inside, and lets none in once it is shut.
type gate struct {
	n     atomic.Int64 // the calls inside; less than 0 when shut
	owner interface{ emptied() }
	once  sync.Once // of emptied, which the last to leave after shut calls
}

const shut = -1 << 62

// enter begins a call, unless the gate is shut. leave ends it.
func (g *gate) enter() bool {
	if g.n.Add(1) > 0 {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.n.Add(-1) == shut {
		g.once.Do(g.owner.emptied)
	}
}

// shut lets nobody in any more. It is called once.
func (g *gate) shut() {
	if g.n.Add(shut) == shut {
		g.once.Do(g.owner.emptied)
	}
}

// shutAndWait waits until nobody is inside. The gate has no owner.
func (g *gate) shutAndWait() {
	empty := make(closing)
	g.owner = empty
	g.shut()
	<-empty
}

// closing is closed when a gate is empty.
type closing chan struct{}

func (c closing) emptied() { close(c) }
