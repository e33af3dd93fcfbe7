package memcache

import (
	"context"
	"errors"
)

// Config.MaxCachedBytes. Memory is freed, and segments are added, under locks with which the driver is not
// called. So they only mark that memory could go back (shards.releasable); Alloc, Free and SetConfig return
// what is too much before they end, when no lock is held.

// settle returns err, the error of a call, after the free memory that the call left beyond MaxCachedBytes
// went back to the driver. If ctx ends first, or the driver fails, a later call returns it. No lock is held.
func (c *Cache) settle(ctx context.Context, err error) error {
	if !c.shards.releasable.Load() || ctx == nil {
		return err
	}
	return errors.Join(err, c.grower.keepWithin(ctx))
}

// keepWithin is settle for a cache that may have memory to return.
func (g *grower) keepWithin(ctx context.Context) error {
	// Pending blocks and private pools make it less. The locks are needed only to know how much.
	if g.ledger.reserved().Current-g.shards.cache.MemoryAllocated() <= g.shards.config().MaxCachedBytes || g.surplus() <= 0 {
		return nil
	}
	err := g.releasing(ctx, "MaxCachedBytes", func() error {
		_, err := (&trim{grower: g, to: toMaxCached}).giveBack(ctx)
		g.shards.history.mark(endOf(err, ActionTrim), 0, g.ledger.reserved().Current)
		return err
	})
	if err != nil {
		g.shards.releasable.Store(true)
		if ctx.Err() != nil {
			return nil
		}
	}
	return err
}

// surplus is how many bytes are cached beyond MaxCachedBytes.
func (g *grower) surplus() int64 {
	g.shards.lockAll()
	defer g.shards.unlockAll()
	if g.shards.closed {
		return 0
	}
	return g.ledger.cached() - g.shards.config().MaxCachedBytes
}

// cached is the free memory of the default pool and of released private pools, in bytes. All shards are locked.
func (l *ledger) cached() int64 {
	bytes := l.stats.ReservedBytes.All.Current
	for _, s := range l.shards.list() {
		bytes -= s.inUse(allPools, gaugeActiveBytes)
	}
	for _, p := range l.shards.cache.openPools {
		stats := p.Stats()
		bytes -= stats.ReservedBytes.All.Current - stats.ActiveBytes.All.Current
	}
	return bytes
}
