// Package callgate lets a Close wait for running calls without a shared lock: a call costs two
// atomic operations. A sync.RWMutex would be held while a call waits for the driver, and a
// sync.WaitGroup forbids an Add that runs concurrently with Wait.
package callgate

import (
	"math"
	"sync/atomic"
)

// Gate counts the calls inside, and lets a closer wait until the last one has left. The zero Gate
// is open.
type Gate struct {
	inside atomic.Int64  // calls; shut is added by Shut, and keeps it negative
	empty  chan struct{} // closed by the last call that leaves a shut gate
}

const shut = math.MinInt64

// Enter begins a call, or returns false if the gate is shut. Leave ends the call.
func (g *Gate) Enter() bool {
	for {
		n := g.inside.Load()
		if n < 0 {
			return false
		}
		if g.inside.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Leave ends a call for which Enter returned true.
func (g *Gate) Leave() {
	if g.inside.Add(-1) == shut {
		close(g.empty)
	}
}

// Shut refuses new calls and waits for those inside. It must be called once only.
func (g *Gate) Shut() {
	g.empty = make(chan struct{})
	if g.inside.Add(shut) != shut {
		<-g.empty
	}
}
