package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// wholeGranules are the granules that lie inside m, a chunk of an expandable segment: those that can be unmapped while its
// neighbours are in use. from >= to: none.
func (c *Cache) wholeGranules(m *chunk) (from, to device.Ptr) {
	granule, base := device.Ptr(c.granuleSize(m.kind)), m.segment.ptr
	from = base + (m.ptr-base+granule-1)/granule*granule
	to = base + (m.ptr+device.Ptr(m.size)-base)/granule*granule
	return from, to
}

// shrink unmaps the whole granules of a free chunk of an expandable segment, which is not in the index (unmap_block) and
// has at least one. What is left at its ends becomes free again; after an error that is all that the driver still maps.
// The growth lock is held; the driver is called before all shards are locked, while the chunk is out of everybody's reach.
func (c *Cache) shrink(ctx context.Context, m *chunk) error {
	from, to := c.wholeGranules(m)
	bytes, err := c.unmap(ctx, m, from, int64(to-from))
	if bytes == 0 {
		c.putBack(m)
		return err
	}
	to = from + device.Ptr(bytes)
	c.lockAll()
	defer c.unlockAll()
	s := m.shard.Load()
	if front := int64(from - m.ptr); front > 0 {
		n := s.newPart(m, m.ptr, front)
		m.insertBefore(n)
		s.mergeAndInsert(n)
	}
	if back := int64(m.ptr + device.Ptr(m.size) - to); back > 0 {
		n := s.newPart(m, to, back)
		m.insertAfter(n)
		s.mergeAndInsert(n)
	}
	m.ptr, m.size, m.unmapped = from, bytes, true
	// Unmapped neighbours are one chunk always, so that findGrowable sees all the room there is.
	for _, n := range [2]*chunk{m.prev, m.next} {
		if n != nil && n.unmapped {
			s.absorb(m, n)
		}
	}
	m.segment.unmapped.insert(m)
	c.stats.ReservedBytes.sub(m.kind, bytes)
	c.stats.NumDeviceFree++
	c.recordSegment(ActionSegmentUnmap, from, bytes, m.segment.stream, nil)
	return err
}

// unmap gives the memory of some granules back, one after the other, and returns how many bytes that were before an error.
// For observers all of it is one call of the driver. Only the growth lock is held.
func (c *Cache) unmap(ctx context.Context, m *chunk, from device.Ptr, bytes int64) (done int64, err error) {
	_, op := c.start(ctx, OpDriverFree)
	for granule := c.granuleSize(m.kind); done < bytes; done += granule {
		if err = c.vmm.Unmap(from+device.Ptr(done), granule); err != nil {
			break
		}
	}
	c.end(op, OpInfo{Op: OpDriverFree, Stream: m.segment.stream, Bytes: bytes, Pool: m.kind.String(), Err: err})
	if err != nil {
		return done, fmt.Errorf("memcache: unmapping %s, after %s: %w", formatBytes(bytes), formatBytes(done), err)
	}
	return done, nil
}

// dissolve unmaps everything of an expandable segment and gives its addresses back, for Close: nobody uses the cache any
// more, and its chunks may be in any state.
func (c *Cache) dissolve(ctx context.Context, seg *segment) error {
	// Runs of chunks with memory, between those without, are unmapped as wholes.
	var errs []error
	granule := c.granuleSize(seg.first.kind)
	mapped := int64(0)
	end := seg.ptr
	for m := seg.first; m != nil; m = m.next {
		if m.unmapped {
			errs = append(errs, c.unmapRun(ctx, m, end, mapped, granule))
			end, mapped = m.ptr+device.Ptr(m.size), 0
		} else {
			mapped += m.size
		}
	}
	errs = append(errs, c.unmapRun(ctx, seg.first, end, mapped, granule), c.vmm.Unreserve(seg.ptr))
	return errors.Join(errs...)
}

// unmapRun unmaps the memory between two unmapped chunks, for dissolve. m tells the pool kind and the stream.
func (c *Cache) unmapRun(ctx context.Context, m *chunk, from device.Ptr, bytes, granule int64) error {
	if bytes == 0 {
		return nil
	}
	done, err := c.unmap(ctx, m, from, bytes/granule*granule)
	if done == 0 {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.ReservedBytes.sub(m.kind, done)
	c.stats.NumDeviceFree++
	return err
}
