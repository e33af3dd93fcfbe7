package memcache

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/device"
)

// Expandable segments (PyTorch's expandable_segments). Each stream, pool and kind has one long range of addresses, and
// memory is mapped into it where a request needs more. Segments of fixed sizes fragment: a request that is larger than
// every free chunk needs a new segment, though the free chunks together would do. Here a free chunk at the end grows, and
// what is free as a whole granule can be unmapped in the middle and mapped elsewhere (shrink.go, remap.go). Of what
// PyTorch's recordings in testdata allocate at their peak, ResNet-50 then reserves 1.02 times as much, in place of 1.26, and
// GPT-2 1.08 times, in place of 1.10 (memreplay -config). It costs more and slower calls of the driver, one for each
// granule, of which unmapping waits for the work that is queued.
//
// A range is tiled by chunks like every segment; those without memory are marked unmapped and are in an index of their
// own, by address. Only the holder of the growth lock changes them. Chunks with memory are allocated, freed and merged by
// hits meanwhile: wherever a lock was given up to call the driver, the neighbours are looked at again.

// granuleSize is the unit in which an expandable segment of a pool grows, in bytes.
func (c *Cache) granuleSize(k poolKind) int64 {
	if k == smallPool {
		return smallSegment
	}
	return c.sizing.granule
}

// expand serves the request by mapping memory into an expandable segment of its stream and pool
// (try_allocate_expandable_block). The growth lock is held: nobody else touches unmapped blocks.
func (c *Cache) expand(ctx context.Context, r *request) (*chunk, error) {
	s := r.shard
	m, err := c.takeGrowable(r)
	if err != nil {
		return nil, err
	}
	// m is free and taken out of the index, or unmapped. Each round maps what is missing behind it, as far as the unmapped
	// chunk there goes; a segment with holes may need several.
	for {
		// While no shard is locked the neighbours may be freed. They don't merge with m, which is in no index: so do it now.
		c.lockAll()
		if !m.unmapped && m.next.mergeable() {
			s.absorb(m, m.next)
		}
		if !m.unmapped && m.size >= r.rounded {
			m = s.allocFresh(m, r)
			c.unlockAll()
			return m, nil
		}
		tail, missing := m, r.rounded
		if !m.unmapped {
			tail, missing = m.next, r.rounded-m.size
		}
		taken := tail == nil || !tail.unmapped // a hit took the free block that was there
		c.unlockAll()
		if taken {
			c.putBack(m)
			if m, err = c.takeGrowable(r); err != nil {
				return nil, err
			}
			continue
		}
		if err := c.mapFront(ctx, tail, min(tail.size, missing), r); err != nil {
			if !m.unmapped {
				c.putBack(m)
			}
			return nil, c.growError(r, err)
		}
		s.mu.Lock()
		if m != tail {
			// The mapped piece absorbs m, which is before it. Neither is in an index.
			tail.absorb(m)
			s.recycle(m)
			m = tail
		} else if m.prev.mergeable() {
			s.absorb(m, m.prev)
		}
		s.mu.Unlock()
	}
}

// takeGrowable returns the chunk that is to grow for the request: a free one, which it takes out of the index so that no
// hit takes it, or an unmapped one, in a new range if no other has room. The growth lock is held, and no other.
func (c *Cache) takeGrowable(r *request) (*chunk, error) {
	s := r.shard
	s.mu.Lock()
	m := s.findGrowable(r)
	if m != nil && !m.unmapped {
		m.segment.free.remove(m) // so that nobody takes it meanwhile
	}
	s.mu.Unlock()
	if m != nil {
		return m, nil
	}
	m, err := c.reserveAddresses(r)
	if err != nil {
		return nil, c.growError(r, err)
	}
	return m, nil
}

// findGrowable returns the first chunk, by address, from which on free and unmapped neighbours have room for the request:
// an unmapped one, or the free one before it; nil if there is none. s.mu is held.
func (s *shard) findGrowable(r *request) *chunk {
	l := s.listsFor(r.pool)
	if l == nil {
		return nil
	}
	x := &l.unmapped[r.kind]
	for m := x.atLeast(0); m != nil; m = x.after(m) {
		first := m
		if m.prev.mergeable() {
			first = m.prev
		}
		var sum int64
		for n := first; n != nil && n.indexed && sum < r.rounded; n = n.next {
			sum += n.size
		}
		if sum >= r.rounded {
			return first
		}
	}
	return nil
}

// reserveAddresses makes an expandable segment, which has no memory yet. It has room for more than the whole device; where
// addresses are scarce, as those of a device that is host memory, for a sixteenth of it or for the request. The growth
// lock is held.
func (c *Cache) reserveAddresses(r *request) (*chunk, error) {
	total, granule := c.dev.Properties().TotalMemory, c.granuleSize(r.kind)
	sizes := []int64{total + total/8, total / 16, 0}
	if _, host := c.dev.(device.HostVisible); host {
		sizes = sizes[1:] // the first range would leave nothing for a second one
	}
	// Addresses cost nothing on a GPU: a range that is longer than the device's memory never has to be left for another. If
	// there are too few the ranges that have no memory are given back first.
	var bytes int64
	var p device.Ptr
	reserve := func(size int64) (err error) {
		bytes = roundUp(max(size, r.rounded), granule)
		if p, err = c.vmm.Reserve(bytes); err != nil {
			c.markAt(ActionReserve, r.shard.id, 0, bytes)
		}
		return err
	}
	err := reserve(sizes[0])
	if errors.Is(err, device.ErrOutOfMemory) {
		if err := c.returnAddresses(true); err != nil {
			return nil, err
		}
	}
	for _, size := range sizes {
		if errors.Is(err, device.ErrOutOfMemory) {
			err = reserve(size)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := c.driverRanges.add(p, bytes); err != nil {
		return nil, err
	}
	s := r.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.newChunk()
	m.segment = &segment{ptr: p, bytes: bytes, first: m, expandable: true}
	m.ptr, m.size, m.kind, m.unmapped = p, bytes, r.kind, true
	s.addSegment(m.segment, r.pool)
	m.segment.unmapped.insert(m)
	c.markAt(ActionReserve, s.id, p, bytes)
	return m, nil
}

// mapFront maps memory for at least the first size bytes of the unmapped chunk m, which becomes a free one outside the index;
// what is left of it stays unmapped. If it fails nothing is mapped. The growth lock is held, and no other.
func (c *Cache) mapFront(ctx context.Context, m *chunk, size int64, r *request) error {
	granule := c.granuleSize(m.kind)
	bytes := roundUp(size, granule)
	_, op := c.start(ctx, OpDriverAlloc)
	err := c.mapGranules(m.ptr, bytes, granule)
	c.end(op, OpInfo{Op: OpDriverAlloc, Stream: r.shard.id, Bytes: bytes, Pool: m.kind.String(), Err: err})
	if err != nil {
		return err
	}
	c.lockAll()
	defer c.unlockAll()
	s := r.shard
	m.segment.unmapped.remove(m)
	if rest := m.size - bytes; rest > 0 {
		n := s.newPart(m, m.ptr+device.Ptr(bytes), rest)
		n.unmapped = true
		m.insertAfter(n)
		m.size = bytes
		m.segment.unmapped.insert(n)
	}
	m.unmapped, m.segment.everMapped = false, true
	c.countReserved(m.kind, bytes)
	c.recordSegment(ActionSegmentMap, m.ptr, bytes, s.id, r.stack)
	c.stats.NumDeviceAlloc++
	return nil
}

// mapGranules maps each granule by itself, so that each can be unmapped by itself; all or none.
func (c *Cache) mapGranules(p device.Ptr, bytes, granule int64) error {
	// A range is given to the driver granule by granule, for it can unmap only what was mapped in one call.
	for done := int64(0); done < bytes; done += granule {
		if err := c.vmm.Map(p+device.Ptr(done), granule); err != nil {
			for done -= granule; done >= 0; done -= granule {
				err = errors.Join(err, c.vmm.Unmap(p+device.Ptr(done), granule))
			}
			return err
		}
	}
	return nil
}
