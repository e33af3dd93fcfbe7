//go:build cuda

package cuda

import (
	"sync"
	"sync/atomic"
)

// gate counts the calls that are inside, and lets none in once it is shut.
type gate struct {
	n       atomic.Int64 // the calls inside; less than 0 when shut
	emptied func()       // run once, by the last to leave after shut
	once    sync.Once
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
		g.once.Do(g.emptied)
	}
}

// shut lets nobody in any more. It is called once.
func (g *gate) shut() {
	if g.n.Add(shut) == shut {
		g.once.Do(g.emptied)
	}
}

// shutAndWait waits until nobody is inside.
func (g *gate) shutAndWait() {
	empty := make(chan struct{})
	g.emptied = func() { close(empty) }
	g.shut()
	<-empty
}
