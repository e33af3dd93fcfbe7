package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// With Config.NoCaching each block is a segment of its own, whose one chunk is in no index. Every Alloc and Free calls the
// driver and holds the growth lock meanwhile: a request never fails for want of memory that a Free is about to return, and
// Close waits for those that are under way. It is for finding mistakes, so it shares the cache's books and checks but none
// of its shortcuts: the driver's own tools see each block come and go.

// allocUncached serves a request from the driver.
func (c *Cache) allocUncached(ctx context.Context, stream device.Stream, r *request) (*chunk, error) {
	r.rounded, r.segmentBytes = r.bytes, r.bytes
	return c.allocMiss(ctx, stream, r)
}

// growUncached asks the driver once: there is nothing to flush, and no free memory to search. The growth lock is held, so
// that what is checked here stays true.
func (c *Cache) growUncached(ctx context.Context, r *request) (*chunk, error) {
	r.shard.mu.Lock()
	r.refused = r.shard.refuses(r)
	r.shard.mu.Unlock()
	if r.refused {
		return nil, r.closedError()
	}
	return c.grow(ctx, r, false)
}

// freeUncached ends b's hand-out, waits for the recorded streams, and returns the memory to the driver. If
// one of that fails the block is pending for good, and Close frees it.
func (c *Cache) freeUncached(b Block) (was freeRecord, err error) {
	ctx := context.Background()
	if err := c.lockGrowth(ctx); err != nil {
		return was, err
	}
	defer c.unlockGrowth()
	s := b.chunk.lockOwner()
	if err := s.checkLive(b); err != nil {
		s.mu.Unlock()
		return was, fmt.Errorf("memcache: Free of %s: %w", b, err)
	}
	m := b.chunk
	s.sequence++
	was = freeRecord{shard: s.id, sequence: s.sequence, requested: m.requested, kind: m.kind, label: m.label}
	s.recordFree(m, nil, false)
	s.noteFree(m)
	m.serial, m.lastSerial, m.pending = 0, m.serial, true
	if m.scope != nil {
		m.discharge(c)
	}
	s.apply(m.kind, &delta{gaugeAllocatedBlocks: -1, gaugeAllocatedBytes: -m.size})
	uses := m.uses
	s.mu.Unlock()

	// The block is pending from here on: nobody has it, and nobody but this call will free it. Errors leave it so, since
	// memory that a stream may still use must not go back.
	var errs []error
	for _, stream := range uses {
		errs = append(errs, c.synchronize(stream))
	}
	if err := errors.Join(errs...); err != nil {
		return was, err
	}
	if err := c.callFree(ctx, m.segment); err != nil {
		return was, err
	}
	c.lockAll()
	defer c.unlockAll()
	clear(uses)
	m.uses, m.pending, m.stack = uses[:0], false, nil
	s.recordBlock(ActionFreeCompleted, m, m.lastSerial, true)
	s.apply(m.kind, &delta{gaugeActiveBlocks: -1, gaugeActiveBytes: -m.size, gaugeRequestedBytes: -m.requested})
	c.forgetSegment(m.segment)
	return was, nil
}
