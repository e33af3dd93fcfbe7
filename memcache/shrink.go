package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// shrink unmaps the whole granules of a free chunk of an expandable segment, which is not in the index (unmap_block) and
// has at least one, but no more of them than have atMost bytes: the last ones. What is left at its ends becomes free again; after an error that is all that the driver still maps.
// The growth lock is held; the driver is called before all shards are locked, while the chunk is out of everybody's reach.
func (g *grower) shrink(ctx context.Context, t taken, atMost int64) error {
	s, m := t.shard, t.chunk
	seg, kind := m.Segment(), m.Kind()
	from, to := s.arena.WholeGranules(m)
	if all := int64(to - from); atMost < all {
		from = to - device.Ptr(min(all, placement.RoundUp(atMost, seg.Granule())))
	}
	bytes, err := g.unmap(ctx, seg, from, int64(to-from))
	if bytes == 0 {
		s.putBack(m)
		return err
	}
	g.shards.lockAll()
	defer g.shards.unlockAll()
	s.merges += s.arena.Unmap(m, from, bytes, s.now(kind))
	g.ledger.uncountReserved(kind, bytes)
	countsOf(seg.Pool()).reserved(kind, 0, -bytes)
	g.ledger.stats.NumDeviceFree++
	seg.Pool().CountDriverCalls(-1)
	g.shards.history.segment(ActionSegmentUnmap, from, bytes, seg.Stream(), seg.Pool(), nil)
	return err
}

// unmap gives the memory of some granules back, one after the other, and returns how many bytes that were before an error.
// For observers all of it is one call of the driver. Only the growth lock is held.
func (g *grower) unmap(ctx context.Context, seg *placement.Segment, from device.Ptr, bytes int64) (done int64, err error) {
	_, op := g.reporter.start(ctx, OpDriverFree)
	for granule := seg.Granule(); done < bytes; done += granule {
		if err = g.vmm.Unmap(from+device.Ptr(done), granule); err != nil {
			break
		}
	}
	g.reporter.end(op, OpInfo{Op: OpDriverFree, Stream: seg.Stream(), Bytes: bytes, Pool: seg.Kind().String(), Err: err})
	if err != nil {
		return done, fmt.Errorf("memcache: unmapping %s, after %s: %w", sizes.Format(bytes), sizes.Format(done), err)
	}
	return done, nil
}

// dissolve unmaps everything of an expandable segment and gives its addresses back, for Close: nobody uses the cache any
// more, and its chunks may be in any state.
func (g *grower) dissolve(ctx context.Context, seg *placement.Segment) error {
	// Runs of chunks with memory, between those without, are unmapped as wholes.
	errs := []error{g.unmapStuck()}
	mapped := int64(0)
	end := seg.Ptr()
	for m := seg.First(); m != nil; m = m.Next() {
		if m.Unmapped() {
			errs = append(errs, g.unmapRun(ctx, seg, end, mapped))
			end, mapped = m.Ptr()+device.Ptr(m.Size()), 0
		} else {
			mapped += m.Size()
		}
	}
	errs = append(errs, g.unmapRun(ctx, seg, end, mapped), g.vmm.Unreserve(seg.Ptr()))
	return errors.Join(errs...)
}

// unmapRun unmaps the memory between two unmapped chunks, for dissolve. It goes on after a granule
// that the driver does not unmap.
func (g *grower) unmapRun(ctx context.Context, seg *placement.Segment, from device.Ptr, bytes int64) error {
	var errs []error
	granule := seg.Granule()
	for bytes >= granule {
		done, err := g.unmap(ctx, seg, from, bytes/granule*granule)
		errs = append(errs, err)
		if done > 0 {
			g.countUnmapped(seg, done)
		}
		done += granule // the one that failed
		from, bytes = from+device.Ptr(done), bytes-done
	}
	return errors.Join(errs...)
}

// countUnmapped counts memory that a segment has given back.
func (g *grower) countUnmapped(seg *placement.Segment, bytes int64) {
	g.shards.mu.Lock()
	defer g.shards.mu.Unlock()
	g.ledger.uncountReserved(seg.Kind(), bytes)
	countsOf(seg.Pool()).reserved(seg.Kind(), 0, -bytes)
	g.ledger.stats.NumDeviceFree++
}
