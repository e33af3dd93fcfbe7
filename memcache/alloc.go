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
	shard   *shard
	closed  bool // found when the shard was looked at
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
			e.Stream, e.Shard = stream.ID(), stream.ID()
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
	r := request{bytes: bytes, rounded: c.rules.round(bytes), shard: c.shardOf(stream), scope: c.scopeOf(ctx)}
	r.segment, r.kind = c.rules.segment(r.rounded), poolFor(r.rounded)
	if c.alert.Load() != 0 {
		if err := c.attend(&r); err != nil {
			return Block{}, outcome{}, err
		}
	}
	b, result, err := c.search(&r)
	if err != nil || result.hit {
		return b, result, err
	}
	return c.allocMiss(ctx, stream, &r)
}

// attend does what a request has to do besides looking at its shard.
func (c *Cache) attend(r *request) error {
	if c.alert.Load() >= collecting {
		c.calls[r.kind].Add(1)
	}
	return c.poll()
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

// search serves the request from a free block, if there is one.
func (c *Cache) search(r *request) (Block, outcome, error) {
	s := r.shard
	s.mu.Lock()
	b, result, fits := s.take(r, false)
	s.mu.Unlock()
	if fits {
		return b, result, s.open(r)
	}
	c.lockAll()
	defer c.unlockAll()
	b, result, _ = s.take(r, true)
	return b, result, s.open(r)
}

// open is the error of a request to a closed cache.
func (s *shard) open(r *request) error {
	if r.closed {
		return fmt.Errorf("memcache: Alloc of %s: %w", formatBytes(r.bytes), ErrClosed)
	}
	return nil
}

// take hands out the free block that serves the request, if there is one. Unless all shards are locked it
// does nothing if that would go beyond a quota, and says so. s.mu is held.
func (s *shard) take(r *request, all bool) (b Block, result outcome, fits bool) {
	if r.closed = s.cache.closed || s.retired; r.closed {
		return Block{}, outcome{}, true
	}
	m := s.find(r)
	if m == nil {
		return Block{}, outcome{}, true
	}
	split := s.cache.worthSplitting(m, r)
	d := s.handOutChange(m, r, split)
	if fits = s.fits(r.kind, &d); !fits && !all {
		return Block{}, outcome{}, false
	}
	s.hits++
	s.free[m.kind].remove(m)
	b = s.handOut(m, r, split, &d)
	if !fits {
		s.cache.raise(s, r.kind)
	}
	return b, outcome{hit: true, sequence: s.sequence}, true
}

// handOutChange is what handing m out changes (alloc_found_block).
func (s *shard) handOutChange(m *meta, r *request, split bool) change {
	size, part := m.size, !m.whole()
	var d change
	if split {
		size = r.rounded
	}
	switch {
	case m.segment.expandable:
	case split && part:
		d[gaugeInactiveSplitBytes] = -size
	case split:
		d[gaugeInactiveSplit], d[gaugeInactiveSplitBytes] = 1, m.size-size
	case part:
		d[gaugeInactiveSplit], d[gaugeInactiveSplitBytes] = -1, -size
	}
	d[gaugeAllocation], d[gaugeAllocatedBytes] = 1, size
	d[gaugeActive], d[gaugeActiveBytes] = 1, size
	d[gaugeRequestedBytes] = r.bytes
	if size >= s.cache.rules.maxSplit {
		d[gaugeOversize] = 1
	}
	return d
}

// handOut hands out a free block that is not in the index. s.mu is held; unless the change fits, all shards
// are locked and raise follows.
func (s *shard) handOut(m *meta, r *request, split bool, d *change) Block {
	if split {
		m = s.splitFront(m, r.rounded)
	}
	s.sequence++
	m.serial, m.requested = s.nextSerial(), r.bytes
	s.apply(m.kind, d)
	if r.scope != nil {
		m.charge(s.cache, r.scope)
	}
	return Block{meta: m, serial: m.serial, ptr: m.ptr, size: m.size, stream: s.id}
}

// splitFront cuts the first size bytes off m as a new block; m keeps the rest and is free. s.mu is held.
func (s *shard) splitFront(m *meta, size int64) *meta {
	front := s.cut(m, m.ptr, size)
	m.insertBefore(front)
	m.ptr += device.Ptr(size)
	m.size -= size
	s.makeFree(m)
	s.splits++
	return front
}

// allocMiss serves a request that found no free block.
func (c *Cache) allocMiss(ctx context.Context, stream device.Stream, r *request) (Block, outcome, error) {
	asked := 0
	for {
		b, result, err := c.allocGrowing(ctx, stream, r)
		if err == nil || !errors.Is(err, ErrOutOfMemory) {
			return b, result, err
		}
		if asked = c.reclaim(ctx, r.segment, asked); asked < 0 {
			c.all.Lock()
			c.stats.NumOOMs++
			c.counts.misses++
			c.all.Unlock()
			return b, result, err
		}
	}
}

// allocGrowing searches once more, asks the driver, flushes, and asks again.
func (c *Cache) allocGrowing(ctx context.Context, stream device.Stream, r *request) (Block, outcome, error) {
	if err := c.lockGrowth(ctx); err != nil {
		return Block{}, outcome{}, err
	}
	defer c.unlockGrowth()
	r.shard = c.shardOf(stream) // shards are retired under the growth lock only
	if !c.config.Exact {
		c.adopt(r)
	}
	b, result, err := c.search(r)
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
		b, result, err := c.search(r)
		if err != nil || result.hit {
			return b, result, err
		}
	}
	return c.grow(ctx, r, true)
}
