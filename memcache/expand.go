package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// granule is the unit in which an expandable segment of a pool grows, in bytes.
func (c *Cache) granule(k poolKind) int64 {
	if k == smallPool {
		return smallSegment
	}
	return c.rules.largeSegment
}

// expand serves the request by mapping memory into an expandable segment of its stream and pool
// (try_allocate_expandable_block). The growth lock is held.
func (c *Cache) expand(ctx context.Context, r *request) (Block, outcome, error) {
	c.mu.Lock()
	m := c.candidate(r)
	if m != nil && !m.unmapped {
		c.free[r.kind].remove(m) // so that nobody takes it meanwhile
	}
	c.mu.Unlock()
	if m == nil {
		var err error
		if m, err = c.reserve(r); err != nil {
			return Block{}, outcome{}, err
		}
	}
	for m.unmapped || m.size < r.rounded {
		tail, missing := m, r.rounded
		if !m.unmapped {
			tail, missing = m.next, r.rounded-m.size
		}
		if err := c.mapFront(ctx, tail, min(tail.size, missing), r); err != nil {
			c.mu.Lock()
			if !m.unmapped {
				c.rejoin(m)
			}
			c.mu.Unlock()
			if errors.Is(err, device.ErrOutOfMemory) {
				return Block{}, outcome{}, c.outOfMemory(r, err)
			}
			return Block{}, outcome{}, fmt.Errorf("memcache: Alloc of %s: %w", formatBytes(r.bytes), err)
		}
		c.mu.Lock()
		if m != tail {
			// The mapped piece absorbs what is before it.
			tail.absorb(m)
			c.recycle(m)
			m = tail
		} else if p := m.prev; p != nil && p.indexed && !p.unmapped {
			c.absorb(m, p)
		}
		if n := m.next; n != nil && n.indexed && !n.unmapped {
			c.absorb(m, n)
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Misses++
	b := c.handOut(m, r)
	return b, outcome{sequence: c.sequence}, nil
}

// candidate is the first block, by address, from which on free and unmapped neighbours have room for the
// request: an unmapped one, or the free one before it. c.mu is held.
func (c *Cache) candidate(r *request) *meta {
	x := &c.unmapped[r.kind]
	for m := x.from(r.id, 0); m != nil && m.stream == r.id; m = x.after(m) {
		first := m
		if p := m.prev; p != nil && p.indexed {
			first = p
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

// reserve makes an expandable segment, which has no memory yet.
func (c *Cache) reserve(r *request) (*meta, error) {
	total := c.dev.Properties().TotalMemory
	bytes := roundUp(total+total/8, c.granule(r.kind))
	p, err := c.vmm.Reserve(bytes)
	if errors.Is(err, device.ErrOutOfMemory) {
		return nil, c.outOfMemory(r, err)
	}
	if err != nil {
		return nil, fmt.Errorf("memcache: Alloc of %s: %w", formatBytes(r.bytes), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.newMeta()
	m.segment = &segment{ptr: p, bytes: bytes, first: m, expandable: true}
	m.ptr, m.size, m.kind, m.stream, m.unmapped = p, bytes, r.kind, r.id, true
	c.segments[p] = m.segment
	c.streams[r.id] = r.stream
	c.unmapped[r.kind].insert(m)
	return m, nil
}

// mapFront maps memory for at least the first size bytes of m, which becomes a free block outside the index;
// what is left of it stays unmapped. If it fails nothing is mapped. The growth lock is held: nobody else
// touches unmapped blocks.
func (c *Cache) mapFront(ctx context.Context, m *meta, size int64, r *request) error {
	granule := c.granule(m.kind)
	bytes := roundUp(size, granule)
	_, op := c.start(ctx, OpDriverAlloc)
	var err error
	for done := int64(0); done < bytes && err == nil; done += granule {
		if err = c.vmm.Map(m.ptr+device.Ptr(done), granule); err != nil {
			for ; done > 0; done -= granule {
				err = errors.Join(err, c.vmm.Unmap(m.ptr+device.Ptr(done-granule), granule))
			}
			break
		}
	}
	c.end(op, Event{Op: OpDriverAlloc, Stream: r.id, Bytes: bytes, Pool: m.kind.String(), Err: err})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unmapped[m.kind].remove(m)
	if rest := m.size - bytes; rest > 0 {
		n := c.newMeta()
		n.segment, n.ptr, n.size, n.kind, n.stream, n.unmapped = m.segment, m.ptr+device.Ptr(bytes), rest, m.kind, m.stream, true
		n.prev, n.next = m, m.next
		if n.next != nil {
			n.next.prev = n
		}
		m.next, m.size = n, bytes
		c.unmapped[m.kind].insert(n)
	}
	m.unmapped = false
	c.stats.ReservedBytes.add(m.kind, bytes)
	c.stats.NumDeviceAlloc++
	return nil
}
