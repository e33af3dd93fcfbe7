package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
)

// The way of a request: alloc checks it and looks for a free chunk of its shard (searchShard, allocCached, bestFit), which
// is all that a hit does. A miss goes on in allocMiss with the growth lock: inherit, collect, remap, grow, lend, release,
// flush, grow again: PyTorch's order, with our own steps in between; and last the reclaimers.

// request is one call of Alloc, and what it leaves for the observer. It lives on the caller's stack.
type request struct {
	bytes        int64
	rounded      int64
	segmentBytes int64 // what the driver is asked for
	shard        *shard
	scope        *Scope
	label        *Label
	stack        []uintptr      // with the history's stacks
	history      *HistoryStream // that the request told of its beginning
	pool         *Pool          // nil: the default pool
	kind         poolKind

	growing  bool // it has the growth lock
	refused  bool // the shard, the cache or the pool has ended; see closedError
	hit      bool // served without the driver
	sequence uint64
	block    Block // what was handed out, as it was under the lock: Close may be next
}

// Alloc hands out a block of at least bytes bytes for work on stream. The contents are undefined: work that
// was queued on the stream before the block's last free may still write it, and runs before what is queued
// on the stream next.
//
// A free block of the stream is used if one fits; otherwise a segment is asked of the driver. If that fails
// Alloc waits for the frees that are pending, returns all free segments, tries again, and asks the
// reclaimers of OnPressure, before it returns an [*OutOfMemoryError].
//
// Zero bytes give the zero Block. ctx carries the scope and the private pool, is the parent of what observers see, and ends
// waiting; when it is done at the start nothing changes.
func (c *Cache) Alloc(ctx context.Context, bytes int64, stream device.Stream) (Block, error) {
	if bytes == 0 {
		return Block{}, nil
	}
	if invariants.Enabled {
		defer c.verify()
	}
	if c.config.Observer != nil {
		return c.allocObserved(ctx, bytes, stream)
	}
	var r request
	_, err := c.alloc(ctx, bytes, stream, &r)
	r.history.leave()
	return r.block, err
}

// allocObserved is Alloc with an observer. What the request did is told from r, which was filled in under the shard's lock:
// the block may be freed, and its chunk handed out again, by the time the observer looks.
func (c *Cache) allocObserved(ctx context.Context, bytes int64, stream device.Stream) (Block, error) {
	ctx, op := c.start(ctx, OpAlloc)
	var r request
	_, err := c.alloc(ctx, bytes, stream, &r)
	r.history.leave()
	b := r.block
	if op == nil && err == nil {
		return b, err
	}
	info := OpInfo{Op: OpAlloc, Requested: bytes, Pool: kindFor(c.sizing.roundSize(bytes)).String(), Err: err}
	if stream != nil {
		info.Stream, info.Shard = stream.ID(), stream.ID()
	}
	info.Serial, info.Bytes, info.Hit, info.Seq, info.Label = b.serial, b.size, r.hit, r.sequence, r.label.value()
	if err != nil {
		c.tellFailed(ctx, info)
	}
	c.end(op, info)
	return b, err
}

// alloc serves a request, and leaves in r what there is to tell of it. It is the path of every hit: it makes no allocation
// by Go, takes one lock, and asks the context and the stream nothing that waits.
func (c *Cache) alloc(ctx context.Context, bytes int64, stream device.Stream, r *request) (*chunk, error) {
	if err := c.checkRequest(ctx, bytes, stream); err != nil {
		return nil, err
	}
	r.bytes, r.rounded, r.shard = bytes, c.sizing.roundSize(bytes), c.shardOf(stream)
	if state, ok := ctx.Value(ctxKey{}).(*ctxState); ok {
		r.scope, r.pool, r.label = state.scope.innermostOf(c), state.poolOf(c), state.label
	}
	r.kind = kindFor(r.rounded)
	if h := c.history.Load(); h != nil {
		r.stack = h.stack(StacksState)
		if err := h.stream.enter(ctx, bytes); err != nil {
			return nil, err
		}
		r.history = h.stream
	}
	if c.config.NoCaching {
		return c.allocUncached(ctx, stream, r)
	}
	// Usually no free is pending, and then this word is all that a hit reads outside of its shard.
	if c.slowWork.Load() != 0 {
		if err := c.pollAndAge(r); err != nil {
			return nil, err
		}
	}
	m, err := c.searchShard(r)
	if m != nil || err != nil {
		return m, err
	}
	r.segmentBytes = c.sizing.segmentSize(r.rounded)
	return c.allocMiss(ctx, stream, r)
}

// pollAndAge ends the frees of the chunks whose events have completed and, while garbage collection is armed, advances the
// clock of ages. The poll comes first, so that those chunks are stamped with the clock before this request, as in PyTorch.
func (c *Cache) pollAndAge(r *request) error {
	if err := c.poll(); err != nil {
		return err
	}
	if r.pool == nil && c.slowWork.Load() >= gcWork {
		c.gcClock[r.kind].Add(1)
	}
	return nil
}

// checkRequest refuses what can't be served, before anything is changed. A stream that is closed could never run the work
// that the block is for.
func (c *Cache) checkRequest(ctx context.Context, bytes int64, stream device.Stream) error {
	if ctx == nil {
		return fmt.Errorf("memcache: Alloc of %d bytes: %w: the context is nil; use context.Background()", bytes, ErrInvalid)
	}
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

// searchShard serves the request from a free chunk of its shard, if there is one; else it returns nil. If a quota is in the
// way it tries again with all shards locked. No lock is held.
func (c *Cache) searchShard(r *request) (*chunk, error) {
	s := r.shard
	s.mu.Lock()
	m, fits := s.allocCached(r, false)
	s.mu.Unlock()
	if !fits {
		c.lockAll()
		m, _ = s.allocCached(r, true)
		c.unlockAll()
	}
	if !r.refused {
		return m, nil
	}
	return nil, r.closedError()
}

// refuses reports whether the shard, its cache or the request's pool has ended, since the request chose them. s.mu is held.
func (s *shard) refuses(r *request) bool {
	return s.cache.closed || s.retired || r.pool != nil && r.pool.released.Load()
}

// closedError says what has ended, for a request that was refused: what it wanted, and what the caller may do.
func (r *request) closedError() error {
	switch {
	case r.pool.isReleased():
		return fmt.Errorf("memcache: Alloc of %s: %w: %s: allocate before its Release, or without its context",
			formatBytes(r.bytes), ErrReleased, r.pool)
	case r.shard.retired:
		return fmt.Errorf("memcache: Alloc of %s: stream %d: %w", formatBytes(r.bytes), r.shard.id, device.ErrClosed)
	default:
		return fmt.Errorf("memcache: Alloc of %s: %w", formatBytes(r.bytes), ErrClosed)
	}
}

// allocCached hands out the free chunk that serves the request, if there is one. Unless all shards are locked it does
// nothing if that would go beyond a quota, and says so: fits is false. s.mu is held.
func (s *shard) allocCached(r *request, allLocked bool) (m *chunk, fits bool) {
	if r.refused = s.refuses(r); r.refused {
		return nil, true
	}
	l := s.listsFor(r.pool)
	if l != nil {
		m = s.bestFit(&l.free[r.kind], r)
	}
	if m == nil {
		if r.growing {
			s.cache.mark(ActionMiss, s.id, r.rounded) // here, so that nothing was freed since
		}
		return nil, true
	}
	// What is about to change is known before anything does, so that a request that would raise a peak can be left alone
	// here and be served with all shards locked. Other shards' unused quotas are tried in between.
	split := s.cache.shouldSplit(m, r)
	var d delta
	s.handOutDelta(m, r, split, &d)
	others := false
	if fits = s.fits(r.kind, &d); !fits && !allLocked {
		if fits, others = s.makeRoom(r.kind, &d); !fits && !others {
			return nil, false
		}
	}
	s.hits++
	r.hit = true
	l.free[r.kind].remove(m)
	m = s.handOut(m, r, split, &d)
	if !fits {
		s.cache.raisePeaks(s, r.kind, &d)
	}
	if others {
		s.cache.unlockOthers(s)
	}
	return m, true
}

// handOutDelta sets d to what handing m out adds to the gauges (alloc_found_block): m counts as a part of a segment no more,
// and what is split off it does.
func (s *shard) handOutDelta(m *chunk, r *request, split bool, d *delta) {
	size, part := m.size, !m.isSegment()
	if split {
		size = r.rounded
	}
	// An inactive part is a free chunk that keeps its segment from going back to the driver. What expandable segments have
	// free can be unmapped, whatever is beside it: nothing there counts.
	switch {
	case m.segment.expandable:
	case split && part:
		d[gaugeInactiveSplitBytes] = -size
	case split:
		d[gaugeInactiveSplitBlocks], d[gaugeInactiveSplitBytes] = 1, m.size-size
	case part:
		d[gaugeInactiveSplitBlocks], d[gaugeInactiveSplitBytes] = -1, -size
	}
	d[gaugeAllocatedBlocks], d[gaugeAllocatedBytes] = 1, size
	d[gaugeActiveBlocks], d[gaugeActiveBytes] = 1, size
	d[gaugeRequestedBytes] = r.bytes
	if size >= s.cache.sizing.maxSplit {
		d[gaugeOversizeBlocks] = 1
	}
}

// handOut hands out a free chunk that is not in the index. s.mu is held; unless the delta fits, all shards are locked and
// raisePeaks follows.
func (s *shard) handOut(m *chunk, r *request, split bool, d *delta) *chunk {
	if split {
		m = s.splitFront(m, r.rounded)
	}
	// Everything that tells who has the chunk is set before the lock is given up: a Block that finds its serial number in
	// the chunk may trust the rest.
	s.sequence++
	r.sequence = s.sequence
	m.serial, m.requested = s.nextSerial(), r.bytes
	m.stack, m.label, m.born = r.stack, r.label, s.epoch
	s.apply(m.kind, d)
	s.recordAlloc(m, r)
	if r.scope != nil {
		m.charge(s.cache, r.scope)
	}
	r.block = Block{chunk: m, serial: m.serial, ptr: m.ptr, size: m.size, stream: s.id}
	return m
}

// splitFront takes the first size bytes off m as a new chunk; m keeps the rest and enters the index. s.mu is held.
func (s *shard) splitFront(m *chunk, size int64) *chunk {
	front := s.newPart(m, m.ptr, size)
	m.insertBefore(front)
	m.ptr += device.Ptr(size)
	m.size -= size
	s.insertFree(m)
	s.splits++
	return front
}

// allocMiss serves a request that found no free chunk. As long as it runs out of memory and a reclaimer frees something it
// tries again. No lock is held, so that a reclaimer may use the cache.
func (c *Cache) allocMiss(ctx context.Context, stream device.Stream, r *request) (*chunk, error) {
	var p pressure
	for {
		m, err := c.allocGrowing(ctx, stream, r)
		if err == nil {
			return m, nil
		}
		if !errors.Is(err, ErrOutOfMemory) {
			if r.growing { // else it has changed nothing
				c.mark(ActionFailed, r.shard.id, r.rounded)
			}
			return nil, err
		}
		if !c.reclaim(ctx, r.segmentBytes, &p) {
			c.mu.Lock()
			c.stats.NumOOMs++
			c.baseCounts.misses++
			c.recordOOM(r, err)
			c.mu.Unlock()
			c.nameHolders(err)
			return nil, err
		}
	}
}

// allocGrowing searches once more, since another request may have grown the cache meanwhile, asks the driver, flushes, and
// asks again. It holds the growth lock throughout: two requests never flush what the other one is about to use.
func (c *Cache) allocGrowing(ctx context.Context, stream device.Stream, r *request) (*chunk, error) {
	if err := c.lockGrowth(ctx); err != nil {
		return nil, err
	}
	defer c.unlockGrowth()
	r.growing = true
	r.shard = c.shardOf(stream) // shards are retired under the growth lock only: this one stays until the end
	c.inheritSegments(r)
	if c.config.NoCaching {
		return c.growUncached(ctx, r)
	}
	if m, err := c.searchShard(r); m != nil || err != nil {
		return m, err
	}
	// What was idle for long goes back first, so that the limit is not reached.
	if err := c.collectGarbage(ctx); err != nil {
		return nil, err
	}
	if err := c.remap(ctx, r); err != nil {
		return nil, err
	}
	m, err := c.grow(ctx, r, false)
	if !errors.Is(err, ErrOutOfMemory) {
		return m, err
	}
	// The driver has nothing, or the limit is reached. From here on each step takes more from others than the one before.
	if m := c.allocFromLendingPool(r); m != nil {
		return m, nil
	}
	released, err := c.releaseOversize(ctx, r)
	if err != nil {
		return nil, err
	}
	if released {
		if m, err = c.grow(ctx, r, false); !errors.Is(err, ErrOutOfMemory) {
			return m, err
		}
	}
	// A flush waits for other streams, and empties the cache: the last resort of the cache itself.
	if err := c.flush(ctx); err != nil {
		return nil, err
	}
	// The flush waited for pending frees, whose chunks may serve the request though their segments could not be returned.
	// PyTorch does not look again.
	if !c.config.Exact {
		if m, err := c.searchShard(r); m != nil || err != nil {
			return m, err
		}
		if m := c.allocFromLendingPool(r); m != nil {
			return m, nil
		}
	}
	return c.grow(ctx, r, true)
}
