package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// grower is the slow path: what is done under the growth lock.
type grower struct {
	dev device.Device
	vmm device.VirtualMemory // of a device that has it, since expandable segments were turned on

	// held is full while one goroutine has the growth lock: while the driver is asked for memory or given some back,
	// and while a flush waits. It is a channel, so that a waiter can be cancelled.
	held         chan struct{}
	driverRanges driverRanges         // guarded by the growth lock
	unused       []device.Ptr         // reserved addresses of no segment; the same
	stuck        map[device.Ptr]int64 // granules that are mapped, but not in the books; the same

	reporter   *reporter
	shards     *shards
	ledger     *ledger
	reclaimers *reclaimers

	oomObservers *oomObservers
	waits        waitQueue
	lending      poolSet   // those with UseOnOOM that were not released; as the ledger
	freeable     poolTable // with Exact, those that were released, until they have no memory; as the ledger
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

// growError is what the request is told when the driver, or its figures, failed it.
func (g *grower) growError(r *request, err error) error {
	if errors.Is(err, device.ErrOutOfMemory) {
		g.shards.history.mark(ActionRefused, r.shard.id, r.segmentBytes)
		return g.outOfMemory(r, err)
	}
	return fmt.Errorf("memcache: Alloc of %s: %w", sizes.Format(r.Requested), err)
}

// outOfMemory is the error of a request that found no memory, with the figures of this moment. No lock is held but that of growth,
// if the driver or a limit has just refused.
func (g *grower) outOfMemory(r *request, cause error) error {
	free, total, err := g.dev.MemInfo()
	if err != nil { // the request is handled all the same
		free, total = -1, g.dev.Properties().TotalMemory
		cause = errors.Join(cause, err)
	}
	// The driver was asked before the shards were locked. Blocks are active from their hand-out until nothing uses them any
	// more, so that what is active and not allocated is pending.
	g.shards.lockAll()
	defer g.shards.unlockAll()
	t := g.ledger.sumStats()
	e := &OutOfMemoryError{
		Requested: r.Requested, Segment: r.segmentBytes, Device: g.dev.Name(), Total: total, Free: free, Limit: -1,
		Allocated: t.AllocatedBytes.All.Current,
		Pending:   t.ActiveBytes.All.Current - t.AllocatedBytes.All.Current,
		Reserved:  t.ReservedBytes.All.Current,
		Err:       cause,
	}
	if g.ledger.limited() {
		e.Limit = g.ledger.limit
	}
	e.Label = r.label.value()
	if !r.shard.retired { // a request that waits for memory does so without a lock
		e.Largest = r.shard.arena.Largest(&r.Want)
	}
	for _, s := range g.shards.list() {
		if s != r.shard {
			e.OtherStreams += s.arena.FreeBytes(r.Pool, r.Kind)
		}
		e.OtherSizes += s.arena.FreeBytes(r.Pool, 1-r.Kind)
		if r.Pool != nil {
			e.OtherPools += s.arena.FreeBytes(nil, placement.Small) + s.arena.FreeBytes(nil, placement.Large)
		}
		for p := range s.arena.Pools() {
			if p != r.Pool {
				e.OtherPools += s.arena.FreeBytes(p, placement.Small) + s.arena.FreeBytes(p, placement.Large)
			}
		}
	}
	for _, p := range g.shards.cache.openPools {
		if p.place.Pinned() && &p.place != r.Pool {
			stats := p.Stats()
			e.Graphs += stats.ReservedBytes.All.Current - stats.ActiveBytes.All.Current
		}
	}
	return e
}

// taken is a chunk that is taken out of its shard's arena, by the holder of the growth lock.
type taken struct {
	shard *shard
	chunk *placement.Chunk
}

// took are chunks that were taken out of the shard's arena.
func (s *shard) took(chunks []*placement.Chunk) []taken {
	list := make([]taken, len(chunks))
	for i, m := range chunks {
		list[i] = taken{s, m}
	}
	return list
}

// putBack makes a chunk of s free again that was taken out. No lock but growth is held.
func (s *shard) putBack(m *placement.Chunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.merges += s.arena.PutBack(m)
}
