package memcache

import (
	"context"
	"slices"
)

// A replay of a graph allocates nothing: its operations use blocks that were allocated, and mostly freed again, while they were captured. So no
// request tells a scope what a replayed step holds. Who captures notes it then, and tells it of each replay.

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
