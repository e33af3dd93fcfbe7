package memcache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Expandable segments (PyTorch's expandable_segments). Each stream, pool and kind has one long
// range of addresses, and memory is mapped into it where a request needs more. Segments of fixed
// sizes fragment: a request that is larger than every free chunk needs a new segment, even if the
// free chunks together would suffice. Here a free chunk at the end grows, and free granules in the
// middle can be unmapped and mapped elsewhere (shrink.go, remap.go). Relative to the peak of
// allocated bytes in PyTorch's recordings in testdata, ResNet-50 then reserves 1.02 times as much
// instead of 1.26, and GPT-2 1.08 times instead of 1.10 (cistern whatif). It needs more and slower
// driver calls, one for each granule, and unmapping waits for the queued work.
//
// Chunks tile a range as they tile every segment. Chunks without memory are marked unmapped and are
// in an index of their own, by address. Only the holder of the growth lock changes them. Meanwhile
// hits and frees allocate, free and merge the chunks with memory. So wherever a lock was released
// to call the driver, the neighbours are checked again.

// expand serves the request by mapping memory into an expandable segment of its stream and pool
// (try_allocate_expandable_block). The growth lock is held, so no other goroutine touches unmapped
// chunks.
func (g *grower) expand(ctx context.Context, r *request) error {
	s := r.shard
	m, err := g.takeGrowable(r)
	if err != nil {
		return err
	}
	// m is taken out of the index, or unmapped. Each round maps the missing granules after it, as
	// far as the unmapped chunk there extends; a segment with holes may need several rounds.
	for {
		g.shards.lockAll()
		tail, missing, merged := s.arena.Missing(m, &r.Want)
		s.merges += merged
		if missing == 0 {
			r.Pool.CountDriverCalls(1)
			s.allocFresh(m, r)
			g.shards.unlockAll()
			return nil
		}
		g.shards.unlockAll()
		if tail == nil { // a hit took the free block that was there
			s.putBack(m)
			if m, err = g.takeGrowable(r); err != nil {
				return err
			}
			continue
		}
		grown, err := g.mapFront(ctx, m, tail, missing, r)
		if err != nil {
			if !m.Unmapped() {
				s.putBack(m)
			}
			return g.growError(r, err)
		}
		m = grown
	}
}

// takeGrowable returns the chunk to grow for the request: a free one, which it takes out of the
// index so that no hit takes it, or an unmapped one, in a new range if no other is large enough.
// Only the growth lock is held.
func (g *grower) takeGrowable(r *request) (*placement.Chunk, error) {
	s := r.shard
	s.mu.Lock()
	m := s.arena.Growable(&r.Want)
	if m != nil && !m.Unmapped() {
		m.TakeOut()
	}
	s.mu.Unlock()
	if m != nil {
		return m, nil
	}
	m, err := g.reserveAddresses(r)
	if err != nil {
		return nil, g.growError(r, err)
	}
	return m, nil
}

// reserveAddresses creates an expandable segment without memory. Its range is larger than the whole
// device. Where addresses are scarce, as on a device whose memory is host memory, the range is a
// sixteenth of the device or the size of the request. The growth lock is held.
func (g *grower) reserveAddresses(r *request) (*placement.Chunk, error) {
	total, granule := g.dev.Properties().TotalMemory, g.shards.rules().GranuleSize(r.Kind)
	ranges := []int64{g.shards.config().reserve(total), total / 16, 0}
	most := int64(math.MaxInt64)
	if g.shards.config().ExpandableSegmentsReserve > 0 {
		most = placement.RoundUp(ranges[0], granule)
	}
	if _, host := g.dev.(device.HostVisible); host {
		ranges = ranges[1:] // the first range would leave no addresses for a second segment
	}
	// Addresses cost nothing on a GPU, and a segment with a range longer than the device's memory
	// never needs a second one. If addresses run out, the ranges without memory are returned first.
	var bytes int64
	var p device.Ptr
	reserve := func(size int64) (err error) {
		bytes = placement.RoundUp(max(size, r.Bytes), granule)
		if bytes > most {
			return fmt.Errorf("%w: expandable_segments_reserve lets a segment have %s of addresses", device.ErrOutOfMemory, sizes.Format(most))
		}
		if p, err = g.vmm.Reserve(bytes); err != nil {
			g.shards.history.markAt(ActionReserve, r.shard.id, 0, bytes)
		}
		return err
	}
	err := reserve(ranges[0])
	if errors.Is(err, device.ErrOutOfMemory) {
		if err := g.returnAddresses(true); err != nil {
			return nil, err
		}
	}
	for _, size := range ranges {
		if errors.Is(err, device.ErrOutOfMemory) {
			err = reserve(size)
		}
	}
	if err != nil {
		return nil, err
	}
	return g.addRange(r, p, bytes)
}

// reserve returns the size of an expandable segment's address range on a device with total bytes of
// memory.
func (c *Config) reserve(total int64) int64 {
	full, r := total+total/8, c.ExpandableSegmentsReserve
	switch {
	case r == 0:
		return full
	case r <= fullReserve:
		return min(full, int64(r*float64(total)))
	}
	return min(full, int64(r))
}

// addRange makes reserved addresses an expandable segment of the request's shard and pool. The
// growth lock is held.
func (g *grower) addRange(r *request, p device.Ptr, bytes int64) (*placement.Chunk, error) {
	if err := g.driverRanges.add(p, bytes); err != nil {
		return nil, err
	}
	s := r.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	g.shards.history.markAt(ActionReserve, s.id, p, bytes)
	return s.arena.Reserve(p, bytes, r.Kind, r.Pool), nil
}

// mapFront maps memory for at least the first size bytes of the unmapped chunk tail and merges them
// with m, which grows. The rest of tail stays unmapped. If it fails nothing is mapped. Only the
// growth lock is held.
func (g *grower) mapFront(ctx context.Context, m, tail *placement.Chunk, size int64, r *request) (grown *placement.Chunk, err error) {
	granule := tail.Segment().Granule()
	bytes := placement.RoundUp(size, granule)
	_, op := g.reporter.start(ctx, OpDriverAlloc)
	err = g.mapGranules(tail.Ptr(), bytes, granule)
	g.reporter.end(op, OpInfo{Op: OpDriverAlloc, Stream: r.shard.id, Bytes: bytes, Pool: r.Kind.String(), Err: err})
	if err != nil {
		return nil, err
	}
	g.shards.lockAll()
	defer g.shards.unlockAll()
	at := tail.Ptr()
	s := r.shard
	s.arena.Map(tail, bytes)
	grown, merged := s.arena.Grown(m, tail)
	s.merges += merged
	g.ledger.countReserved(r.Kind, bytes)
	countsOf(r.Pool).reserved(r.Kind, 0, bytes)
	g.shards.history.segment(ActionSegmentMap, at, bytes, s.id, r.Pool, r.stack)
	g.ledger.stats.NumDeviceAlloc++
	return grown, nil
}

// mapGranules maps each granule with a call of its own, so that each can be unmapped alone; all or
// none.
func (g *grower) mapGranules(p device.Ptr, bytes, granule int64) error {
	// The driver can unmap only a whole range that one call has mapped.
	for done := int64(0); done < bytes; done += granule {
		at := p + device.Ptr(done)
		if g.stuck[at] > 0 {
			delete(g.stuck, at)
			continue
		}
		if err := g.vmm.Map(at, granule); err != nil {
			errs := []error{err}
			for ; done > 0; done -= granule {
				errs = append(errs, g.rollBack(p+device.Ptr(done-granule), granule))
			}
			return errors.Join(errs...)
		}
	}
	return nil
}

// rollBack unmaps a granule that the chunks record as unmapped. If the driver does not unmap it, it
// is stuck until mapGranules uses it or unmapStuck unmaps it.
func (g *grower) rollBack(p device.Ptr, granule int64) error {
	err := g.vmm.Unmap(p, granule)
	if err != nil {
		if g.stuck == nil {
			g.stuck = make(map[device.Ptr]int64)
		}
		g.stuck[p] = granule
	}
	return err
}

// unmapStuck unmaps the stuck granules. The growth lock is held, or the cache is being closed.
func (g *grower) unmapStuck() error {
	var errs []error
	for p, granule := range maps.Clone(g.stuck) {
		delete(g.stuck, p)
		errs = append(errs, g.rollBack(p, granule))
	}
	return errors.Join(errs...)
}
