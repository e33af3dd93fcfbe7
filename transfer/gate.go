package transfer

import (
	"math"
	"sync/atomic"
)

// gate counts the calls that are inside, and lets a closer wait until the last one has left.
type gate struct {
	n    atomic.Int64 // calls inside; closedGate is added by shut
	idle chan struct{}
}

const closedGate = math.MinInt64

func (g *gate) enter() bool {
	for {
		n := g.n.Load()
		if n < 0 {
			return false
		}
		if g.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (g *gate) leave() {
	if g.n.Add(-1) == closedGate {
		close(g.idle)
	}
}

// shut refuses new calls and waits for those inside. It is called once.
func (g *gate) shut() {
	g.idle = make(chan struct{})
	if g.n.Add(closedGate) != closedGate {
		<-g.idle
	}
}
