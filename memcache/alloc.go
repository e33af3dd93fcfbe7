package memcache

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The way of a request: alloc checks it and looks for a free chunk of its shard's arena (searchShard, allocCached), which is
// all that a hit does. A miss goes on in miss.go.

// request is one call of Alloc, and what it leaves for the observer. It lives on the caller's stack.
type request struct {
	placement.Want       // Requested is what the caller asked for
	segmentBytes   int64 // what the driver is asked for
	shard          *shard
	scope          *Scope
	label          *Label
	stack          []uintptr      // with the history's stacks
	history        *HistoryStream // that the request told of its beginning
	pool           *Pool          // nil: the default pool; as Want.Pool

	growing  bool  // it has the growth lock
	refused  error // the shard, the cache or the pool has ended
	hit      bool  // served without the driver
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
	err := c.alloc(ctx, bytes, stream, &r)
	r.history.leave()
	return r.block, err
}

// allocObserved is Alloc with an observer. What the request did is told from r, which was filled in under the shard's lock:
// the block may be freed, and its chunk handed out again, by the time the observer looks.
func (c *Cache) allocObserved(ctx context.Context, bytes int64, stream device.Stream) (Block, error) {
	ctx, op := c.reporter.start(ctx, OpAlloc)
	var r request
	err := c.alloc(ctx, bytes, stream, &r)
	r.history.leave()
	b := r.block
	if op == nil && err == nil {
		return b, err
	}
	info := OpInfo{Op: OpAlloc, Requested: bytes, Pool: placement.KindFor(c.shards.rules.RoundSize(bytes)).String(), Err: err}
	if stream != nil {
		info.Stream, info.Shard = stream.ID(), stream.ID()
	}
	info.Serial, info.Bytes, info.Hit, info.Seq, info.Label = b.serial, b.size, r.hit, r.sequence, r.label.value()
	if err != nil {
		c.reporter.failed(ctx, info)
	}
	c.reporter.end(op, info)
	return b, err
}

// alloc serves a request, and leaves in r what there is to tell of it. It is the path of every hit: it makes no allocation
// by Go, takes one lock, and asks the context and the stream nothing that waits.
func (c *Cache) alloc(ctx context.Context, bytes int64, stream device.Stream, r *request) error {
	if err := c.checkRequest(ctx, bytes, stream); err != nil {
		return err
	}
	r.Requested, r.Bytes, r.shard = bytes, c.shards.rules.RoundSize(bytes), c.shards.of(stream)
	if state, ok := ctx.Value(ctxKey{}).(*ctxState); ok {
		r.scope, r.label = state.scope.innermostOf(&c.ledger), state.label
		r.from(state.poolOf(c))
	}
	r.Kind = placement.KindFor(r.Bytes)
	if h := c.shards.history.Load(); h != nil {
		r.stack = h.stack(StacksState)
		if err := h.stream.enter(ctx, bytes); err != nil {
			return err
		}
		r.history = h.stream
	}
	if c.config.NoCaching {
		return c.allocUncached(ctx, stream, r)
	}
	// Usually no free is pending, and then this word is all that a hit reads outside of its shard.
	if c.shards.slowWork.Load() != 0 {
		if err := c.pollAndAge(r); err != nil {
			return err
		}
	}
	if served, err := r.search(); served || err != nil {
		return err
	}
	r.segmentBytes = c.shards.rules.SegmentSize(r.Bytes)
	return c.grower.allocMiss(ctx, stream, r)
}

// from says which pool the request is for; nil: the default pool.
func (r *request) from(p *Pool) {
	if r.pool, r.Pool = p, nil; p != nil {
		r.Pool = &p.place
	}
}

// pollAndAge ends the frees of the chunks whose events have completed and, while garbage collection is armed, advances the
// clock of ages. The poll comes first, so that those chunks are stamped with the clock before this request, as in PyTorch.
func (c *Cache) pollAndAge(r *request) error {
	if err := c.pending.poll(); err != nil {
		return err
	}
	if r.pool == nil && c.shards.slowWork.Load() >= gcWork {
		c.shards.gcClock[r.Kind].Add(1)
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

// search serves the request from a free chunk of its shard, if there is one. If a quota is in the way it tries again
// with all shards locked. No lock is held.
func (r *request) search() (served bool, err error) {
	s := r.shard
	s.mu.Lock()
	served, fits := s.allocCached(r, false)
	s.mu.Unlock()
	if !fits {
		s.shards.lockAll()
		served, _ = s.allocCached(r, true)
		s.shards.unlockAll()
	}
	return served, r.refused
}

// refusal says why the request can't be served, if its shard, its cache or its pool has ended since it chose them: what it
// wanted, and what the caller may do. s.mu is held.
func (s *shard) refusal(r *request) error {
	switch {
	case r.pool.isReleased():
		return fmt.Errorf("memcache: Alloc of %s: %w: %s: allocate before its Release, or without its context",
			formatBytes(r.Requested), ErrReleased, r.pool)
	case s.retired:
		return fmt.Errorf("memcache: Alloc of %s: stream %d: %w", formatBytes(r.Requested), s.id, device.ErrClosed)
	case s.shards.closed:
		return fmt.Errorf("memcache: Alloc of %s: %w", formatBytes(r.Requested), ErrClosed)
	}
	return nil
}

// allocCached hands out the free chunk that serves the request, if there is one. Unless all shards are locked it does
// nothing if that would go beyond a quota, and says so: fits is false. s.mu is held.
func (s *shard) allocCached(r *request, allLocked bool) (served, fits bool) {
	if s.shards.closed || s.retired || r.pool.isReleased() {
		r.refused = s.refusal(r)
		return false, true
	}
	m := s.arena.Find(&r.Want)
	if m == nil {
		if r.growing {
			s.shards.history.mark(ActionMiss, s.id, r.Bytes) // here, so that nothing was freed since
		}
		return false, true
	}
	// What is about to change is known before anything does, so that a request that would raise a peak can be left alone
	// here and be served with all shards locked. Other shards' unused quotas are tried in between.
	fit := s.arena.Fit(m, &r.Want)
	var d delta
	s.handOutDelta(r, &fit, &d)
	others := false
	if fits = s.fits(r.Kind, &d); !fits && !allLocked {
		if fits, others = s.makeRoom(r.Kind, &d); !fits && !others {
			return false, false
		}
	}
	s.hits++
	r.hit = true
	s.handOut(m, r, &fit, &d)
	if !fits {
		s.shards.ledger.raisePeaks(s, r.Kind, &d)
	}
	if others {
		s.shards.unlockOthers(s)
	}
	return true, true
}

// handOutDelta sets d to what the hand-out adds to the gauges.
func (s *shard) handOutDelta(r *request, fit *placement.Fit, d *delta) {
	d[gaugeInactiveSplitBlocks], d[gaugeInactiveSplitBytes] = fit.Inactive.Blocks, fit.Inactive.Bytes
	d[gaugeAllocatedBlocks], d[gaugeAllocatedBytes] = 1, fit.Size
	d[gaugeActiveBlocks], d[gaugeActiveBytes] = 1, fit.Size
	d[gaugeRequestedBytes] = r.Requested
	if fit.Size >= s.shards.rules.MaxSplit {
		d[gaugeOversizeBlocks] = 1
	}
}

// handOut hands out a chunk as the arena's Fit said. s.mu is held; unless the delta fits, all shards are locked and raisePeaks
// follows.
func (s *shard) handOut(m *placement.Chunk, r *request, fit *placement.Fit, d *delta) {
	m = s.arena.HandOut(m, &r.Want, fit, s.now(r.Kind))
	if fit.Split {
		s.splits++
	}
	// Everything that tells who has the chunk is set before the lock is given up: a Block that finds its serial number may
	// trust the rest.
	s.sequence++
	r.sequence = s.sequence
	h := s.newHandout()
	m.Tag = h
	h.chunk, h.serial = m, s.nextSerial()
	h.stack, h.label, h.born = r.stack, r.label, s.epoch
	s.apply(r.Kind, d)
	s.recordAlloc(h, r)
	if r.scope != nil {
		h.charge(r.scope)
	}
	r.block = Block{handout: h, chunk: m, serial: h.serial, ptr: m.Ptr(), size: fit.Size, stream: s.id}
}
