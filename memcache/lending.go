package memcache

// allocFromLendingPool serves a request of the default pool from a private pool with UseOnOOM, in the order in which they
// were made, if one has a free chunk of the stream that fits. The chunk stays the pool's, and returns to it. PyTorch never
// lends chunks of expandable segments; Exact does the same. The growth lock is held; all shards are locked meanwhile, so
// that the search cannot be refused for a quota and no pool is released under it.
func (g *grower) allocFromLendingPool(r *request) bool {
	if r.pool != nil || g.config.Exact && g.config.ExpandableSegments {
		return false
	}
	// The request belongs to the pool only while that is tried: if none can lend, it is the default pool that grows.
	g.shards.lockAll()
	defer g.shards.unlockAll()
	for _, p := range g.oomPools {
		r.from(p)
		if served, _ := r.shard.allocCached(r, true); served {
			return true
		}
	}
	r.from(nil)
	return false
}
