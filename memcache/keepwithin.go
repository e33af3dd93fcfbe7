package memcache

import "context"

// Config.MaxCachedBytes. Memory is freed, and segments are added, under locks with which the driver is not
// called. So they only mark that memory could go back (shards.releasable); Alloc, Free and SetConfig return
// what is too much before they end, when no lock is held.

// settle returns the free memory that a call left beyond MaxCachedBytes to the driver. A later call does, if
// ctx ends or another goroutine is at the driver meanwhile; that one's request settles, too. An error of the
// driver is what the observer gets: the call itself has succeeded. No lock is held.
func (c *Cache) settle(ctx context.Context) {
	if c.shards.releasable.Load() {
		c.grower.keepWithin(ctx)
	}
}

// keepWithin is settle for a cache that may have memory to return.
func (g *grower) keepWithin(ctx context.Context) {
	// Pending blocks and private pools make it less. The locks are needed only to know how much.
	if g.ledger.reservedNow.Load()-g.shards.cache.MemoryAllocated() <= g.shards.config().MaxCachedBytes || ctx == nil || ctx.Err() != nil {
		return
	}
	if h := g.shards.history.Load(); h != nil {
		if h.stream.enter(ctx, noRequest) != nil {
			return
		}
		defer h.stream.leave()
	}
	// A Free must not wait for the driver's call of another goroutine: an observer of that call may free.
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

// surplus is how many bytes are cached beyond MaxCachedBytes: of the free memory of the default pool and of
// released private pools. All shards are locked.
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
