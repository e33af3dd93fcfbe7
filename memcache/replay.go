package memcache

import (
	"context"
	"slices"
)

// A replay of a graph allocates nothing: its operations use blocks that were allocated, and mostly
// freed again, during the capture. So no request adds the memory of a replayed step to a scope.
// Instead the capture records it, and each replay is reported with Replayed.

// Replays counts the replays of a graph in a scope.
type Replays struct {
	*GraphMemory
	Count int64
}

// Replayed records a replay in those scopes of the context that belong to this cache.
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

// replayed counts a replay. s.mu is held.
func (s *Scope) replayed(m *GraphMemory) {
	for i := range s.replays {
		if s.replays[i].GraphMemory == m {
			s.replays[i].Count++
			return
		}
	}
	s.replays = append(s.replays, Replays{m, 1})
}

// Replays returns the replays with the scope's context, or that of a scope inside it, in the order
// of each graph's first replay.
func (s *Scope) Replays() []Replays {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.replays)
}
