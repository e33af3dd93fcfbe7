// Package callgate lets a Close wait for the calls that are running, without a lock that they would
// share: a call costs two atomic additions. A sync.RWMutex would do the same, but would be held
// while a call waits for the driver, and a WaitGroup may not be added to beside its Wait.
package callgate

import (
	"math"
	"sync/atomic"
)

// Gate counts the calls that are inside, and lets a closer wait until the last one has left. The
// zero Gate is open.
type Gate struct {
	inside atomic.Int64  // calls; shut is added by Shut, and keeps it negative
	empty  chan struct{} // closed by the last call that leaves a shut gate
}

const shut = math.MinInt64

// Enter begins a call, and reports false if the gate is shut. Leave ends what Enter began.
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

// Leave ends a call that Enter let in.
func (g *Gate) Leave() {
	if g.inside.Add(-1) == shut {
		close(g.empty)
	}
}

// Shut lets no call in any more, and waits for those inside. It is called once.
func (g *Gate) Shut() {
	g.empty = make(chan struct{})
	if g.inside.Add(shut) != shut {
		<-g.empty
	}
}
