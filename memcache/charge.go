package memcache

// charge counts the block in the open scopes of the chain that starts with s, and stores the
// innermost of them in the handout. Several shards may charge a scope at once, so each chain has a
// lock. Scopes end in any order, so the charged scopes need not be adjacent in the chain. The
// handout therefore stores how many scopes had ended: the block was charged to those scopes of the
// chain that ended later or not at all. The block's shard is locked.
func (h *handout) charge(s *Scope) {
	h.scope, h.scopesEndedBefore = nil, s.ledger.scopesEnded
	size := h.chunk.Size()
	s.mu.Lock()
	defer s.mu.Unlock()
	// From the inside out. Scopes of other caches are skipped: their own blocks charge them.
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

// discharge removes the block from the scopes that it was charged to. The block's shard is locked.
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
