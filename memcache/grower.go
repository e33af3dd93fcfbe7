package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// grower is the slow path: the operations under the growth lock.
type grower struct {
	dev device.Device
	vmm device.VirtualMemory // set when expandable segments are first turned on

	// held is full while a goroutine holds the growth lock: during driver calls, and while a flush
	// waits. It is a channel, so that a waiter can be cancelled.
	held         chan struct{}
	driverRanges driverRanges // guarded by the growth lock
	// reserved addresses of no segment; guarded by the growth lock
	unused []device.Ptr
	// granules that are mapped, but recorded as unmapped; guarded by the growth lock
	stuck map[device.Ptr]int64

	reporter   *reporter
	shards     *shards
	ledger     *ledger
	reclaimers *reclaimers

	oomObservers *oomObservers
	waits        waitQueue
	lending      poolSet // unreleased pools with UseOnOOM; guarded as the ledger
	// with Exact, released pools that still have memory; guarded as the ledger
	freeable poolTable
}

// lock takes the growth lock, unless ctx ends first.
func (g *grower) lock(ctx context.Context) error {
	// A free lock is taken even if ctx has ended. One select would choose at random.
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

// growError returns the error of a request that failed in the driver or in the checks of the
// driver's results.
func (g *grower) growError(r *request, err error) error {
	if errors.Is(err, device.ErrOutOfMemory) {
		g.shards.history.mark(ActionRefused, r.shard.id, r.segmentBytes)
		return g.outOfMemory(r, err)
	}
	return fmt.Errorf("memcache: Alloc of %s: %w", sizes.Format(r.Requested), err)
}

// outOfMemory returns the error of a request that found no memory, with the present figures. No
// lock is held except, after a refusal by the driver or a limit, the growth lock.
func (g *grower) outOfMemory(r *request, cause error) error {
	free, total, err := g.dev.MemInfo()
	if err != nil { // the request is handled all the same
		free, total = -1, g.dev.Properties().TotalMemory
		cause = errors.Join(cause, err)
	}
	// The driver was queried before the shards were locked. A block is active from its allocation
	// until no stream uses it any more, so active minus allocated bytes are pending.
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
	// a request that waits for memory holds no lock here, so its shard may be retired
	if !r.shard.retired {
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

// taken is a chunk that the holder of the growth lock has taken out of its shard's arena.
type taken struct {
	shard *shard
	chunk *placement.Chunk
}

// took returns the chunks, which were taken out of the shard's arena, with their shard.
func (s *shard) took(chunks []*placement.Chunk) []taken {
	list := make([]taken, len(chunks))
	for i, m := range chunks {
		list[i] = taken{s, m}
	}
	return list
}

// putBack makes a chunk of s that was taken out free again. Only the growth lock may be held.
func (s *shard) putBack(m *placement.Chunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.merges += s.arena.PutBack(m)
}
