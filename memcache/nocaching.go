package memcache

import (
	"context"
	"errors"
	"fmt"
)

// With Config.NoCaching each block is a segment of its own, whose one chunk is never free. Every Alloc and Free calls the
// driver and holds the growth lock meanwhile: a request never fails for want of memory that a Free is about to return, and
// Close waits for those that are under way. It is for finding mistakes, so it shares the cache's books and checks but none
// of its shortcuts: the driver's own tools see each block come and go.

// growUncached asks the driver once: there is nothing to flush, and no free memory to search. The growth lock is held, so
// that what is checked here stays true.
func (g *grower) growUncached(ctx context.Context, r *request) error {
	r.shard.mu.Lock()
	r.refused = r.refusal()
	r.shard.mu.Unlock()
	if r.refused != nil {
		return r.refused
	}
	return g.grow(ctx, r, false)
}

// freeUncached ends b's hand-out, waits for the recorded streams, and returns the memory to the driver. If
// one of that fails the block is pending for good, and Close frees it.
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
	h.recording = true // until its streams are done
	d := delta{gaugeAllocatedBlocks: -1, gaugeAllocatedBytes: -m.Size()}
	s.add(nil, kind, &d, false)
	s.publish()
	countPool(m, &d)
	uses := h.uses
	s.mu.Unlock()

	// The block is pending from here on: nobody has it, and nobody but this call will free it. Errors leave it so, since
	// memory that a stream may still use must not go back.
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
