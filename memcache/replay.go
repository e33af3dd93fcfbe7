package memcache

import (
	"context"
	"slices"
	"sync/atomic"
)

// A replay of a graph allocates nothing: its operations use blocks that were allocated, and mostly freed again, while they were captured. So no
// request tells a scope what a replayed step holds. Who captures notes it then, and tells it of each replay.

// GraphMemory is what a graph holds while it runs, as it was while it was captured. Only Pool changes once it is told of.
type GraphMemory struct {
	Held        int64     // bytes that were allocated at the capture's peak, and not before it
	Allocations int64     // blocks that were handed out in the capture
	Holdings    []Holding // at the peak; they add up to Held, the largest first
	Pool        *GraphPool
}

// GraphPool is what the graphs of one private pool share.
type GraphPool struct {
	ID       PoolID
	Graphs   atomic.Int64 // that are open
	Reserved atomic.Int64 // bytes of the pool's segments, when the last was captured
}

// Replays are the replays of a graph in a scope.
type Replays struct {
	*GraphMemory
	Count int64
}

// Replayed tells the scopes of the context, those of this cache, of a replay.
func (c *Cache) Replayed(ctx context.Context, m *GraphMemory) {
	s := ctxStateOf(ctx).scope
	if s == nil || m == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; s != nil; s = s.parent {
		if s.ledger == &c.ledger {
			s.replayed(m)
		}
	}
}

// replayed counts a replay. mu is held.
func (s *Scope) replayed(m *GraphMemory) {
	for i := range s.replays {
		if s.replays[i].GraphMemory == m {
			s.replays[i].Count++
			return
		}
	}
	s.replays = append(s.replays, Replays{m, 1})
}

// Replays are those with the scope's context, or that of a scope inside it, in the order of the first of each graph.
func (s *Scope) Replays() []Replays {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.replays)
}

// Since are the holdings of p that before has not: more blocks of an owner and size are those that are more.
func (p Profile) Since(before Profile) []Holding {
	type key struct {
		label Label
		size  int64
	}
	had := make(map[key]int)
	for _, h := range before.Holdings {
		had[key{h.Label, h.Size}] += h.Blocks
	}
	var more []Holding
	for _, h := range p.Holdings {
		k := key{h.Label, h.Size}
		old := min(had[k], h.Blocks)
		had[k] -= old
		if h.Blocks == old {
			continue
		}
		h.Requested -= h.Requested / int64(h.Blocks) * int64(old)
		h.Blocks -= old
		h.Bytes = int64(h.Blocks) * h.Size
		more = append(more, h)
	}
	slices.SortStableFunc(more, compareHoldings)
	return more
}
