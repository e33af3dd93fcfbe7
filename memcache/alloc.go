package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// request is one call of Alloc.
type request struct {
	bytes   int64
	rounded int64
	segment int64 // what the driver is asked for
	kind    poolKind
	stream  device.Stream
	id      uint64 // of the stream
	scope   *Scope
}

// Alloc hands out a block of at least bytes bytes for work on stream. The contents are undefined: work that
// was queued on the stream before the block's last free may still write it, and runs before what is queued
// on the stream next.
//
// A free block of the stream is used if one fits; otherwise a segment is asked of the driver. If that fails
// Alloc waits for the frees that are pending, returns all free segments, tries again, and asks the
// reclaimers of OnPressure, before it returns an [*OutOfMemoryError].
//
// Zero bytes give the zero Block. ctx carries the scope, is the parent of what observers see, and ends
// waiting; when it is done at the start nothing changes.
func (c *Cache) Alloc(ctx context.Context, bytes int64, stream device.Stream) (Block, error) {
	if bytes == 0 {
		return Block{}, nil
	}
	if c.config.Observer == nil {
		b, _, err := c.alloc(ctx, bytes, stream)
		return b, err
	}
	return c.allocObserved(ctx, bytes, stream)
}

func (c *Cache) allocObserved(ctx context.Context, bytes int64, stream device.Stream) (Block, error) {
	ctx, op := c.start(ctx, OpAlloc)
	b, result, err := c.alloc(ctx, bytes, stream)
	if op != nil {
		e := Event{Op: OpAlloc, Requested: bytes, Pool: poolFor(c.rules.round(bytes)).String(), Err: err}
		if stream != nil {
			e.Stream = stream.ID()
		}
		e.Serial, e.Bytes, e.Hit, e.Seq = b.serial, b.size, result.hit, result.sequence
		c.end(op, e)
	}
	return b, err
}

// outcome is what an allocation leaves for the observer.
type outcome struct {
	hit      bool
	sequence uint64
}

func (c *Cache) alloc(ctx context.Context, bytes int64, stream device.Stream) (Block, outcome, error) {
	if err := c.checkRequest(ctx, bytes, stream); err != nil {
		return Block{}, outcome{}, err
	}
	r := request{bytes: bytes, rounded: c.rules.round(bytes), stream: stream, id: stream.ID(), scope: c.scopeOf(ctx)}
	r.segment, r.kind = c.rules.segment(r.rounded), poolFor(r.rounded)

	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return Block{}, outcome{}, fmt.Errorf("memcache: Alloc of %s: %w", formatBytes(bytes), ErrClosed)
	}
	err := c.poll()
	if err == nil {
		if c.collects() {
			c.calls[r.kind]++
		}
		if m := c.find(&r); m != nil {
			b := c.take(m, &r)
			result := outcome{hit: true, sequence: c.sequence}
			c.mu.Unlock()
			return b, result, nil
		}
	}
	c.mu.Unlock()
	if err != nil {
		return Block{}, outcome{}, err
	}
	return c.allocMiss(ctx, &r)
}

func (c *Cache) checkRequest(ctx context.Context, bytes int64, stream device.Stream) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memcache: Alloc of %s: %w", formatBytes(bytes), err)
	}
	if bytes < 0 {
		return fmt.Errorf("memcache: Alloc of %d bytes: %w: the size is negative", bytes, ErrInvalid)
	}
	if err := c.checkStream("Alloc", stream); err != nil {
		return err
	}
	if bytes >= maxRequest {
		return &OutOfMemoryError{Requested: bytes, Device: c.dev.Name(), Limit: -1, tooLarge: true}
	}
	if stream.Closed() {
		return fmt.Errorf("memcache: Alloc of %s: stream %d: %w", formatBytes(bytes), stream.ID(), device.ErrClosed)
	}
	return nil
}

// take hands out a free block, split if the rest is worth keeping (alloc_found_block). c.mu is held.
func (c *Cache) take(m *meta, r *request) Block {
	c.stats.Hits++
	c.free[m.kind].remove(m)
	return c.handOut(m, r)
}

// handOut is take for a block that is not in the index. c.mu is held.
func (c *Cache) handOut(m *meta, r *request) Block {
	s, wasPart, kind, fixed := &c.stats, !m.whole(), m.kind, !m.segment.expandable
	if c.worthSplitting(m, r) {
		rest := m.size - r.rounded
		m = c.splitFront(m, r.rounded)
		switch {
		case !fixed:
		case wasPart:
			s.InactiveSplitBytes.sub(kind, r.rounded)
		default:
			s.InactiveSplitBytes.add(kind, rest)
			s.InactiveSplit.add(kind, 1)
		}
	} else if wasPart && fixed {
		s.InactiveSplitBytes.sub(kind, m.size)
		s.InactiveSplit.sub(kind, 1)
	}
	c.serial++
	c.sequence++
	m.serial, m.requested = c.serial, r.bytes
	s.Allocation.add(kind, 1)
	s.AllocatedBytes.add(kind, m.size)
	s.Active.add(kind, 1)
	s.ActiveBytes.add(kind, m.size)
	s.RequestedBytes.add(kind, r.bytes)
	if m.size >= c.rules.maxSplit {
		s.OversizeAllocations.add(1)
	}
	c.charge(m, r.scope)
	return Block{meta: m, serial: m.serial, ptr: m.ptr, size: m.size, stream: m.stream}
}

// splitFront cuts the first size bytes off m as a new block; m keeps the rest and is free. c.mu is held.
func (c *Cache) splitFront(m *meta, size int64) *meta {
	front := c.newMeta()
	front.segment, front.ptr, front.size, front.kind, front.stream = m.segment, m.ptr, size, m.kind, m.stream
	front.prev, front.next = m.prev, m
	if m.prev != nil {
		m.prev.next = front
	} else {
		m.segment.first = front
	}
	m.prev = front
	m.ptr += device.Ptr(size)
	m.size -= size
	c.makeFree(m)
	c.stats.Splits++
	return front
}

// allocMiss serves a request that found no free block.
func (c *Cache) allocMiss(ctx context.Context, r *request) (Block, outcome, error) {
	asked := 0
	for {
		b, result, err := c.allocGrowing(ctx, r)
		if err == nil || !errors.Is(err, ErrOutOfMemory) {
			return b, result, err
		}
		if asked = c.reclaim(ctx, r.segment, asked); asked < 0 {
			c.mu.Lock()
			c.stats.NumOOMs++
			c.stats.Misses++
			c.mu.Unlock()
			return b, result, err
		}
	}
}

// allocGrowing searches once more, asks the driver, flushes, and asks again.
func (c *Cache) allocGrowing(ctx context.Context, r *request) (Block, outcome, error) {
	if err := c.lockGrowth(ctx); err != nil {
		return Block{}, outcome{}, err
	}
	defer c.unlockGrowth()
	b, result, err := c.search(r, true)
	if err != nil || result.hit {
		return b, result, err
	}
	if err := c.collect(ctx); err != nil {
		return Block{}, outcome{}, err
	}
	b, result, err = c.grow(ctx, r, false)
	if !errors.Is(err, ErrOutOfMemory) {
		return b, result, err
	}
	released, err := c.releaseOversize(ctx, r)
	if err != nil {
		return Block{}, outcome{}, err
	}
	if released {
		b, result, err = c.grow(ctx, r, false)
		if !errors.Is(err, ErrOutOfMemory) {
			return b, result, err
		}
	}
	if err := c.flush(ctx); err != nil {
		return Block{}, outcome{}, err
	}
	if !c.config.Exact {
		b, result, err := c.search(r, false)
		if err != nil || result.hit {
			return b, result, err
		}
	}
	return c.grow(ctx, r, true)
}

// search looks for a free block again, after adopting those of closed streams if adopt is set.
func (c *Cache) search(r *request, adopt bool) (Block, outcome, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return Block{}, outcome{}, fmt.Errorf("memcache: Alloc of %s: %w", formatBytes(r.bytes), ErrClosed)
	}
	if adopt && !c.config.Exact {
		c.adopt(r)
	}
	m := c.find(r)
	if m == nil {
		return Block{}, outcome{}, nil
	}
	b := c.take(m, r)
	return b, outcome{hit: true, sequence: c.sequence}, nil
}

// grow asks the driver for a segment and serves the request from it (alloc_block). The growth lock is held.
func (c *Cache) grow(ctx context.Context, r *request, retry bool) (Block, outcome, error) {
	bytes := r.segment
	c.mu.Lock()
	if retry {
		c.stats.NumAllocRetries++
	}
	limited := c.limit < bytes || c.stats.ReservedBytes.All.Current > c.limit-bytes
	c.mu.Unlock()
	if limited {
		return Block{}, outcome{}, c.outOfMemory(r, nil)
	}
	if c.config.ExpandableSegments {
		return c.expand(ctx, r)
	}
	p, err := c.driverAlloc(ctx, bytes, r)
	if err != nil {
		if errors.Is(err, device.ErrOutOfMemory) {
			return Block{}, outcome{}, c.outOfMemory(r, err)
		}
		return Block{}, outcome{}, fmt.Errorf("memcache: Alloc of %s: %w", formatBytes(r.bytes), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.newMeta()
	m.segment = &segment{ptr: p, bytes: bytes, first: m}
	m.ptr, m.size, m.kind, m.stream = p, bytes, r.kind, r.id
	c.segments[p] = m.segment
	c.streams[r.id] = r.stream
	c.stats.Segment.add(r.kind, 1)
	c.stats.ReservedBytes.add(r.kind, bytes)
	if bytes >= c.rules.maxSplit {
		c.stats.OversizeSegments.add(1)
	}
	c.stats.NumDeviceAlloc++
	c.stats.Misses++
	b := c.handOut(m, r)
	return b, outcome{sequence: c.sequence}, nil
}

func (c *Cache) driverAlloc(ctx context.Context, bytes int64, r *request) (device.Ptr, error) {
	_, op := c.start(ctx, OpDriverAlloc)
	p, err := c.dev.Alloc(bytes)
	c.end(op, Event{Op: OpDriverAlloc, Stream: r.id, Bytes: bytes, Pool: r.kind.String(), Err: err})
	return p, err
}
