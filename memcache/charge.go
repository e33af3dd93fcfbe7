package memcache

// A block is charged to the scopes of its request, and discharged when it is freed.

// charge counts a block in the open scopes of the chain that starts with s, and lets it keep the innermost of them. A scope
// may be charged from several shards at once, so its chain has a lock. Scopes end in any order, so these need not
// follow one another: the block notes how many scopes had ended, and was charged to those of the chain that ended later
// or not at all. The block's shard is locked.
func (h *handout) charge(s *Scope) {
	h.scope, h.scopesEndedBefore = nil, s.ledger.scopesEnded
	size := h.chunk.Size()
	s.mu.Lock()
	defer s.mu.Unlock()
	// From the inside out. An enclosing scope of another cache is passed over: it is charged by its own blocks.
	for ; s != nil; s = s.parent.innermostOf(s.ledger) {
		if s.ended != 0 {
			continue
		}
		if h.scope == nil {
			h.scope = s
		}
		s.own.Live += size
		s.own.Peak = max(s.own.Peak, s.own.Live)
		s.own.Allocations++
	}
}

// discharge takes a block out of the scopes that it was charged to. The block's shard is locked.
func (h *handout) discharge() {
	s := h.scope
	h.scope = nil
	size := h.chunk.Size()
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; s != nil; s = s.parent.innermostOf(s.ledger) {
		if s.ended != 0 && s.ended <= h.scopesEndedBefore {
			continue
		}
		s.own.Live -= size
		notNegative("a scope's live bytes", s.own.Live)
	}
}
