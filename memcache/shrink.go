package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// shrink unmaps the last whole granules of a free chunk of an expandable segment, as many as atMost
// bytes need (unmap_block). The chunk is not in the index and contains at least one whole
// granule. The rest of the chunk becomes free again, including granules that the driver has failed
// to unmap. The growth lock is held. The driver is called before all shards are locked, while no
// other goroutine can reach the chunk.
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

// unmap unmaps granules one after the other, and returns how many bytes it unmapped before an
// error. Observers see one driver call. Only the growth lock is held.
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

// dissolve unmaps all memory of an expandable segment and returns its addresses, for Close: the
// cache is no longer used, and the chunks may be in any state.
func (g *grower) dissolve(ctx context.Context, seg *placement.Segment) error {
	// A run of chunks with memory between unmapped chunks is unmapped as a whole.
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

// unmapRun unmaps the memory between two unmapped chunks, for dissolve. It continues after a
// granule that the driver does not unmap.
func (g *grower) unmapRun(ctx context.Context, seg *placement.Segment, from device.Ptr, bytes int64) error {
	var errs []error
	granule := seg.Granule()
	for bytes >= granule {
		done, err := g.unmap(ctx, seg, from, bytes/granule*granule)
		errs = append(errs, err)
		if done > 0 {
			g.countUnmapped(seg, done)
		}
		done += granule // skip the one that failed
		from, bytes = from+device.Ptr(done), bytes-done
	}
	return errors.Join(errs...)
}

// countUnmapped counts memory that was unmapped from a segment.
func (g *grower) countUnmapped(seg *placement.Segment, bytes int64) {
	g.shards.mu.Lock()
	defer g.shards.mu.Unlock()
	g.ledger.uncountReserved(seg.Kind(), bytes)
	countsOf(seg.Pool()).reserved(seg.Kind(), 0, -bytes)
	g.ledger.stats.NumDeviceFree++
}
