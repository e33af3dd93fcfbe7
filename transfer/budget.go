package transfer

import "context"

// The budget of cached bytes (Config.MaxCachedBytes) and the number of cached buffers of a class
// (Config.MaxCachedBuffers) are kept exactly without a counter that the shards share: each shard
// has an allowance of both, and makes slabs idle within it under its own lock alone. What finds no
// room there waits in the shard's list of excess, still counted as active, until somebody
// rebalances: with all shards locked, allowances move to where they are needed, and the slabs that
// were not used for longest are evicted.
//
// The invariant that audits check: the allowances of the shards and of the pool, and what is
// cached, add up to the budget. It costs one rebalance, all locks, for each piece that a shard is
// granted; a piece is half of a shard's fair part, so that a shard whose cache grows asks a few
// times and then never again.

// needsRebalance reports whether slabs wait for rebalance.
func (sh *shard) needsRebalance() bool { return len(sh.excess)+len(sh.tainted) > 0 }

// rebalance finds room for what a shard had none for, and frees the rest. It polls all copies. No
// lock is held.
func (p *Pool) rebalance(ctx context.Context) {
	p.freeAll(ctx, p.rebalanceShards())
}

// rebalanceShards is rebalance up to the driver calls, and returns what they are to free.
func (p *Pool) rebalanceShards() []*slab {
	p.lockAll()
	defer p.unlockAll()
	p.rebalanceDue.Store(false)
	p.pollAll()
	return p.takeEvicted()
}

// cacheOrEvict makes s idle. What has to go for it is evicted: s itself if its class is full or it
// is larger than the budget, otherwise what was not used for longest. All shards are locked.
func (p *Pool) cacheOrEvict(sh *shard, s *slab) {
	for !p.tryCache(sh, s) {
		if sh.bufferAllowance[s.class] == 0 || s.size() > p.budget {
			p.evictActive(sh, s)
			return
		}
		from, old := p.oldest()
		from.removeIdle(old)
		p.evict(old)
	}
}

// tryCache puts s among the idle ones of sh, if all shards together have room. All are locked.
func (p *Pool) tryCache(sh *shard, s *slab) bool {
	if sh.bufferAllowance[s.class] == 0 {
		p.grantBuffer(sh, s.class)
	}
	if s.size() <= p.budget {
		p.grantBytes(sh, s.size())
	}
	if sh.bufferAllowance[s.class] == 0 || sh.byteAllowance < s.size() {
		return false
	}
	sh.pushIdle(s)
	p.raisePeaks(sh)
	return true
}

// grantBytes raises sh.byteAllowance towards need: by a good piece of what no shard has, else by
// what others don't use.
func (p *Pool) grantBytes(sh *shard, need int64) {
	// A good piece, so that a shard that fills its cache asks a few times and not for each slab.
	if n := min(p.byteAllowance, max(need-sh.byteAllowance, p.budget/int64(2*len(p.shards)))); sh.byteAllowance < need {
		p.byteAllowance -= n
		sh.byteAllowance += n
	}
	// The others give what they don't use, but no more than is needed: they would come for it soon.
	for _, other := range p.shards {
		if n := min(need-sh.byteAllowance, other.byteAllowance); other != sh && n > 0 {
			other.byteAllowance -= n
			sh.byteAllowance += n
		}
	}
}

// grantBuffer gives sh the right to cache more buffers of a class, as grantBytes does with bytes.
func (p *Pool) grantBuffer(sh *shard, class int) {
	if n := min(p.bufferAllowance[class], max(1, p.maxPerClass/int32(2*len(p.shards)))); n > 0 {
		p.bufferAllowance[class] -= n
		sh.bufferAllowance[class] += n
		return
	}
	for _, other := range p.shards {
		if other.bufferAllowance[class] > 0 {
			other.bufferAllowance[class]--
			sh.bufferAllowance[class]++
			return
		}
	}
}
