package memcache

// borrow serves a request of the default pool from a private pool with UseOnOOM, in the order in which they
// were made, if one has a free block of the stream that fits. The block stays the pool's. PyTorch never lends
// blocks of expandable segments; Exact does the same. The growth lock is held.
func (c *Cache) allocFromLendingPool(r *request) *chunk {
	if r.pool != nil || c.config.Exact && c.config.ExpandableSegments {
		return nil
	}
	c.lockAll()
	defer c.unlockAll()
	for _, p := range c.oomPools {
		r.pool = p
		if m, _ := r.shard.allocCached(r, true); m != nil {
			return m
		}
	}
	r.pool = nil
	return nil
}
