package memcache

import "context"

// Config.MaxCachedBytes. Frees and growth happen under locks with which the driver must not be
// called, so they only mark that memory may be returned (shards.releasable). Alloc, Free and
// SetConfig return the excess before they end, when no lock is held.

// settle returns free memory beyond MaxCachedBytes to the driver. If ctx has ended, or another
// goroutine is calling the driver, a later call does it, such as that goroutine's own settle. Only
// the observer receives an error of the driver, because the call itself has succeeded. No lock is
// held.
func (c *Cache) settle(ctx context.Context) {
	if c.shards.releasable.Load() {
		c.grower.keepWithin(ctx)
	}
}

// keepWithin is settle after the check for marked memory.
func (g *grower) keepWithin(ctx context.Context) {
	// An upper bound without the locks: pending blocks and private pools make the excess smaller.
	if g.ledger.reservedNow.Load()-g.shards.cache.MemoryAllocated() <= g.shards.config().MaxCachedBytes || ctx == nil || ctx.Err() != nil {
		return
	}
	if h := g.shards.history.Load(); h != nil {
		if h.stream.enter(ctx, noRequest) != nil {
			return
		}
		defer h.stream.leave()
	}
	// A Free must not wait for another goroutine's driver call, because an observer of that call
	// may free.
	select {
	case g.held <- struct{}{}:
	default:
		return
	}
	defer g.unlock()
	g.shards.lockAll()
	surplus := g.ledger.surplus()
	g.shards.unlockAll()
	if surplus <= 0 {
		return
	}
	_, err := (&trim{grower: g, to: toMaxCached}).giveBack(ctx)
	g.shards.history.mark(endOf(err, ActionTrim), 0, g.ledger.reserved().Current)
}

// surplus returns by how many bytes the free memory of the default pool and of released private
// pools exceeds MaxCachedBytes. All shards are locked.
func (l *ledger) surplus() int64 {
	most := l.shards.config().MaxCachedBytes
	if most == 0 || l.shards.closed {
		return 0
	}
	bytes := l.stats.ReservedBytes.All.Current - most
	for _, s := range l.shards.list() {
		bytes -= s.inUse(allPools, gaugeActiveBytes)
	}
	for _, p := range l.shards.cache.openPools {
		stats := p.Stats()
		bytes -= stats.ReservedBytes.All.Current - stats.ActiveBytes.All.Current
	}
	return bytes
}
