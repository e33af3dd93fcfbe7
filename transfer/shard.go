package transfer

// The operations of a shard, under its lock, and the search through all shards. cache.go describes
// their data.

// search takes an idle slab from another shard than own, which had none. It tries the unlocked
// shards first and waits for a lock only if they have nothing, because a goroutine that waits may
// wake on another processor and then misses the slabs that it released on this one.
func (c *cache) search(own *shard, class int, requested int64) *slab {
	var busy uint64
	first := own.lastFrom.Load()
	for i := range uint32(len(c.shards)) {
		at := (first + i) % uint32(len(c.shards))
		if sh := c.shards[at]; !sh.TryLock() {
			busy |= 1 << at
		} else if s := sh.takeAndUnlock(class, requested); s != nil {
			own.lastFrom.Store(at)
			return s
		}
	}
	for at, sh := range c.shards {
		if busy>>at&1 > 0 {
			sh.Lock()
			if s := sh.takeAndUnlock(class, requested); s != nil {
				own.lastFrom.Store(uint32(at))
				return s
			}
		}
	}
	return nil
}

// takeAndUnlock removes an idle slab from the shard, counts it as out and returns it, or nil. It
// takes the slab that was released last, because that may still be in a cache of the processor. The
// shard is locked, and takeAndUnlock unlocks it.
func (sh *shard) takeAndUnlock(class int, requested int64) *slab {
	// Polling calls the driver, so it is left for a cache without an idle slab.
	if sh.idle[class] == nil && len(sh.queues) > 0 {
		sh.pollPending()
	}
	s := sh.idle[class]
	if s == nil || sh.closed {
		sh.Unlock()
		return nil
	}
	sh.removeIdle(s)
	sh.hits++
	sh.countOut(s, requested)
	sh.Unlock()
	return s
}

// putNew adds a new slab, which is out, to the pool. All gauges change at once, so that every
// reader finds the allocated bytes equal to the active and the cached ones.
func (sh *shard) putNew(s *slab, requested int64) {
	sh.Lock()
	defer sh.Unlock()
	sh.misses++
	sh.countNew(s, requested)
	sh.cache.pinned.link(s)
}

// takeBack takes the slab of a released buffer of requested bytes. The shard is locked.
func (sh *shard) takeBack(s *slab, requested int64) {
	// The last copy on each stream is enough: earlier ones are done before it.
	for _, u := range s.uses {
		s.completions = append(s.completions, u.last)
		sh.addPending(u.last, s)
	}
	clear(s.uses)
	s.uses = s.uses[:0]
	switch {
	case s.waiting > 0:
		sh.pending++
	case !s.tainted && sh.countReturned(s, requested):
		sh.pushIdle(s)
		return
	default:
		sh.tooMuch(s)
	}
	sh.countReleased(requested)
}

// reclaim takes back a slab that no copy uses any more. If a copy failed, the device may still use
// the memory, so the slab is left for trim, which frees it. The shard is locked, but
// peaks.Shard.Add may unlock it for a moment.
func (sh *shard) reclaim(s *slab) {
	changes := idleChanges(s)
	if s.tainted || !sh.Add(changes[:]...) {
		sh.tooMuch(s)
		return
	}
	sh.pushIdle(s)
}

// tooMuch leaves a slab that can't become idle here for trim. The shard is locked.
func (sh *shard) tooMuch(s *slab) {
	sh.excess = append(sh.excess, s)
	sh.cache.excessive.Store(true)
}
