package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// shrink unmaps the whole granules of a free block of an expandable segment, which is not in the index
// (unmap_block). What is left at its ends becomes free again. The growth lock is held.
func (c *Cache) shrink(ctx context.Context, m *meta) error {
	granule := device.Ptr(c.granule(m.kind))
	base := m.segment.ptr
	from := base + (m.ptr-base+granule-1)/granule*granule
	to := base + (m.ptr+device.Ptr(m.size)-base)/granule*granule
	if from >= to {
		c.putBack(m)
		return nil
	}
	bytes := int64(to - from)
	if err := c.unmap(ctx, m, from, bytes); err != nil {
		c.putBack(m)
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if front := int64(from - m.ptr); front > 0 {
		n := c.cut(m, m.ptr, front)
		n.prev, n.next = m.prev, m
		if n.prev != nil {
			n.prev.next = n
		} else {
			m.segment.first = n
		}
		m.prev = n
		c.rejoin(n)
	}
	if back := int64(m.ptr + device.Ptr(m.size) - to); back > 0 {
		n := c.cut(m, to, back)
		n.prev, n.next = m, m.next
		if n.next != nil {
			n.next.prev = n
		}
		m.next = n
		c.rejoin(n)
	}
	m.ptr, m.size, m.unmapped = from, bytes, true
	for _, n := range [2]*meta{m.prev, m.next} {
		if n != nil && n.unmapped {
			c.absorb(m, n)
		}
	}
	c.unmapped[m.kind].insert(m)
	c.stats.ReservedBytes.sub(m.kind, bytes)
	c.stats.NumDeviceFree++
	return nil
}

// cut is a new block in m's segment.
func (c *Cache) cut(m *meta, p device.Ptr, size int64) *meta {
	n := c.newMeta()
	n.segment, n.ptr, n.size, n.kind, n.stream = m.segment, p, size, m.kind, m.stream
	return n
}

// unmap gives the memory of some granules back.
func (c *Cache) unmap(ctx context.Context, m *meta, from device.Ptr, bytes int64) error {
	_, op := c.start(ctx, OpDriverFree)
	var err error
	for done, granule := int64(0), c.granule(m.kind); done < bytes && err == nil; done += granule {
		err = c.vmm.Unmap(from+device.Ptr(done), granule)
	}
	c.end(op, Event{Op: OpDriverFree, Stream: m.stream, Bytes: bytes, Pool: m.kind.String(), Err: err})
	if err != nil {
		return fmt.Errorf("memcache: unmapping %s: %w", formatBytes(bytes), err)
	}
	return nil
}

// dissolve unmaps everything of an expandable segment and gives its addresses back.
func (c *Cache) dissolve(ctx context.Context, s *segment) error {
	var errs []error
	granule := c.granule(s.first.kind)
	mapped := int64(0)
	end := s.ptr
	for m := s.first; m != nil; m = m.next {
		if m.unmapped {
			errs = append(errs, c.unmapRun(ctx, m, end, mapped, granule))
			end, mapped = m.ptr+device.Ptr(m.size), 0
		} else {
			mapped += m.size
		}
	}
	errs = append(errs, c.unmapRun(ctx, s.first, end, mapped, granule), c.vmm.Unreserve(s.ptr))
	return errors.Join(errs...)
}

func (c *Cache) unmapRun(ctx context.Context, m *meta, from device.Ptr, bytes, granule int64) error {
	if bytes == 0 {
		return nil
	}
	if err := c.unmap(ctx, m, from, bytes/granule*granule); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.ReservedBytes.sub(m.kind, bytes)
	c.stats.NumDeviceFree++
	return nil
}
