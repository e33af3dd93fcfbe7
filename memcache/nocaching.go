package memcache

import (
	"context"
	"errors"
	"fmt"
)

// With Config.NoCaching each block is a segment of its own, whose one chunk is never free. Every
// Alloc and Free calls the driver under the growth lock. So a request never fails while a Free is
// about to return the memory that it needs, and Close waits for calls in flight. The mode is for
// debugging: it shares the cache's accounting and checks but none of its shortcuts, so that the
// driver's own tools see each block.

// growUncached calls the driver once: there is nothing to flush, and no free memory to search. The
// growth lock is held, so that the checks stay valid.
func (g *grower) growUncached(ctx context.Context, r *request) error {
	r.shard.mu.Lock()
	r.refused = r.refusal()
	r.shard.mu.Unlock()
	if r.refused != nil {
		return r.refused
	}
	return g.grow(ctx, r, false)
}

// freeUncached ends b's allocation, waits for the recorded streams, and returns the memory to the
// driver. If a step fails the block stays pending until Close frees it.
func (g *grower) freeUncached(b Block, was *freeRecord) error {
	ctx := context.Background()
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	h := b.handout
	s := h.shard
	s.mu.Lock()
	if err := s.checkLive(&b); err != nil {
		s.mu.Unlock()
		return fmt.Errorf("memcache: Free of %s: %w", b, err)
	}
	m := h.chunk
	kind := m.Kind()
	s.sequence++
	was.shard, was.sequence, was.requested, was.kind, was.label = s.id, s.sequence, m.Requested, kind, h.label
	s.recordFree(h, nil, false)
	s.makePending(h)
	h.recording = true // until its streams have completed
	d := delta{gaugeAllocatedBlocks: -1, gaugeAllocatedBytes: -m.Size()}
	s.add(nil, kind, &d, false)
	s.publish()
	countPool(m, &d)
	uses := h.uses
	s.mu.Unlock()

	// The block is pending from here on, and only this call will free it. On an error it stays
	// pending, because memory that a stream may still use must not be freed.
	var errs []error
	for _, stream := range uses {
		errs = append(errs, synchronize(stream))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := g.callFree(ctx, m.Segment()); err != nil {
		return err
	}
	g.shards.lockAll()
	defer g.shards.unlockAll()
	h.forgetUses()
	s.recordBlock(ActionFreeCompleted, h, h.lastSerial, true)
	d = delta{gaugeActiveBlocks: -1, gaugeActiveBytes: -m.Size(), gaugeRequestedBytes: -m.Requested}
	s.add(nil, kind, &d, true)
	countPool(m, &d)
	s.keepHandout(h)
	g.forgetSegment(s, m.Segment())
	g.waits.countFree()
	return nil
}
