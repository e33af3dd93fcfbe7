package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Growth. One goroutine at a time asks the driver for memory, under the growth lock. Calls of the driver take from
// microseconds to milliseconds and may wait for the device, so no shard is locked meanwhile: hits, and frees, of all
// streams go on. Two requests that miss at once therefore don't both grow the cache by a segment of which the first one's
// rest would have served the second: the second searches again when it gets the lock. PyTorch holds its one lock through
// all of it, or gives it up around the driver's allocation (release_lock_on_cudamalloc) and then may grow twice.

// grower is the slow path: what is done under the growth lock.
type grower struct {
	dev    device.Device
	vmm    device.VirtualMemory // with expandable segments
	config *Config

	// held is full while one goroutine has the growth lock: while the driver is asked for memory or given some back,
	// and while a flush waits. It is a channel, so that who waits for it can be cancelled.
	held         chan struct{}
	driverRanges driverRanges // guarded by the growth lock

	reporter   *reporter
	shards     *shards
	ledger     *ledger
	pending    *pendingFrees
	reclaimers *reclaimers
	oomPools   []*Pool // those with UseOnOOM that were not released, by number; as the ledger
}

// lock takes the growth lock, unless ctx ends first.
func (g *grower) lock(ctx context.Context) error {
	// A lock that is free is taken whatever ctx says: Go chooses at random among cases that are ready.
	select {
	case g.held <- struct{}{}:
		return nil
	default:
	}
	select {
	case g.held <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("memcache: waiting for another allocation: %w", ctx.Err())
	}
}

func (g *grower) unlock() { <-g.held }

// grow asks the driver for a segment, or an expandable segment for more, and serves the request from it (alloc_block).
// retry says that a flush went before. The growth lock is held.
func (g *grower) grow(ctx context.Context, r *request, retry bool) error {
	bytes := r.segmentBytes
	g.shards.mu.Lock()
	if retry {
		g.ledger.stats.NumAllocRetries++
	}
	// A limit refuses before the driver is asked. The difference can't overflow, where a sum could.
	limited := g.ledger.limit < bytes || g.ledger.stats.ReservedBytes.All.Current > g.ledger.limit-bytes
	g.shards.mu.Unlock()
	if limited {
		return g.outOfMemory(r, nil)
	}
	if g.config.ExpandableSegments {
		return g.expand(ctx, r)
	}
	p, err := g.driverAlloc(ctx, bytes, r)
	if err != nil {
		return g.growError(r, err)
	}
	if err := g.driverRanges.add(p, bytes); err != nil {
		return g.growError(r, err)
	}
	// A new segment changes the cache's statistics and perhaps a peak, and is handed out in the same moment: nobody sees
	// it reserved and not in use.
	g.shards.lockAll()
	defer g.shards.unlockAll()
	s := r.shard
	m := s.arena.NewSegment(p, bytes, r.Kind, r.Pool)
	g.ledger.stats.Segment.add(r.Kind, 1)
	g.ledger.stats.NumDeviceAlloc++
	if bytes >= g.shards.rules.MaxSplit {
		g.ledger.stats.OversizeSegments.add(1)
	}
	g.ledger.countReserved(r.Kind, bytes)
	g.shards.history.segment(ActionSegmentAlloc, p, bytes, s.id, r.stack)
	s.allocFresh(m, r)
	return nil
}

// allocFresh hands out memory for which the driver was asked. It is in no index yet, so that no other request takes it
// before. All shards are locked.
func (s *shard) allocFresh(m *placement.Chunk, r *request) {
	s.misses++
	fit := s.arena.Fit(m, &r.Want)
	var d delta
	s.handOutDelta(r, &fit, &d)
	s.handOut(m, r, &fit, &d)
	s.shards.ledger.raisePeaks(s, r.Kind, &d)
}

// countReserved counts memory from the driver. shards.mu is held.
func (l *ledger) countReserved(k placement.Kind, bytes int64) {
	l.stats.ReservedBytes.add(k, bytes)
	for _, scope := range l.openScopes {
		scope.window.Reserved.Peak = max(scope.window.Reserved.Peak, l.stats.ReservedBytes.All.Current)
	}
}

// growError is what the request is told when the driver, or its figures, failed it.
func (g *grower) growError(r *request, err error) error {
	if errors.Is(err, device.ErrOutOfMemory) {
		g.shards.history.mark(ActionRefused, r.shard.id, r.segmentBytes)
		return g.outOfMemory(r, err)
	}
	return fmt.Errorf("memcache: Alloc of %s: %w", formatBytes(r.Requested), err)
}

// driverAlloc calls the driver, beside the observer. Only the growth lock is held.
func (g *grower) driverAlloc(ctx context.Context, bytes int64, r *request) (device.Ptr, error) {
	_, op := g.reporter.start(ctx, OpDriverAlloc)
	p, err := g.dev.Alloc(bytes)
	g.reporter.end(op, OpInfo{Op: OpDriverAlloc, Stream: r.shard.id, Bytes: bytes, Pool: r.Kind.String(), Err: err})
	return p, err
}
