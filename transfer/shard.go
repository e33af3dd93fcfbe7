package transfer

// What is done in a shard, under its lock, and the search through all of them. cache.go says what there is.

// search is take from any shard but own, where there was nothing. It waits for a lock only where all that are free have
// nothing: a goroutine that waits wakes on another processor, and misses what it released on this one.
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

// takeAndUnlock takes an idle slab of the shard, the last that was released, since its lines may still be in a cache of the
// processor, and counts it as out; or nil. The shard is locked, and is not afterwards.
func (sh *shard) takeAndUnlock(class int, requested int64) *slab {
	// Polling asks the driver, so it is for when the cache has nothing.
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

// putNew makes a new slab one of the pool's, which is out. Everything is counted at once: whoever looks finds the allocated
// bytes to be the active and the cached ones.
func (sh *shard) putNew(s *slab, requested int64) {
	sh.Lock()
	defer sh.Unlock()
	sh.misses++
	sh.countNew(s, requested)
	sh.cache.pinned.link(s)
}

// takeBack takes the slab of a buffer that has ended, and was of so many bytes. The shard is locked.
func (sh *shard) takeBack(s *slab, requested int64) {
	// The last copy on each stream is enough: those before it are done when it is.
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

// reclaim takes back a slab that nothing uses. If a copy failed, what the device does with the
// memory is unknown, and it goes to the driver instead. The shard is locked, but may not be for a moment (peaks.Shard.Add).
func (sh *shard) reclaim(s *slab) {
	changes := idleChanges(s)
	if s.tainted || !sh.Add(changes[:]...) {
		sh.tooMuch(s)
		return
	}
	sh.pushIdle(s)
}

// tooMuch leaves a slab for trim. The shard is locked.
func (sh *shard) tooMuch(s *slab) {
	sh.excess = append(sh.excess, s)
	sh.cache.excessive.Store(true)
}
