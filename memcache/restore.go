package memcache

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/internal/restore"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

func init() {
	restore.Into = func(cache any, segments []restore.Segment) error { return cache.(*Cache).restore(segments) }
}

// restore fills an empty cache with the segments. Every piece is first allocated, so that free
// pieces do not merge with each other. Then the unmapped pieces are unmapped and the free ones
// freed.
func (c *Cache) restore(segments []restore.Segment) error {
	for i := range segments {
		if err := c.restoreSegment(&segments[i]); err != nil {
			return fmt.Errorf("memcache: restoring segment %d: %w", i, err)
		}
	}
	c.ResetPeakStats()
	c.ResetAccumulatedStats()
	return nil
}

func (c *Cache) restoreSegment(seg *restore.Segment) error {
	ctx := seg.Context
	r := request{shard: c.shards.of(seg.Stream), label: ctxStateOf(ctx).label}
	if p := ctxStateOf(ctx).poolOf(c); p != nil {
		r.Pool = &p.place
	}
	r.Kind = placement.Large
	if seg.Small {
		r.Kind = placement.Small
	}
	for i := range seg.Pieces {
		r.Bytes += seg.Pieces[i].Bytes
	}
	blocks, err := c.grower.restore(ctx, &r, seg)
	if err != nil {
		return err
	}
	// Unmapped pieces go first, because a free neighbour would merge with them.
	for _, state := range []restore.State{restore.Unmapped, restore.Free, restore.Used} {
		for i := range seg.Pieces {
			if seg.Pieces[i].State == state {
				if err := c.restorePiece(ctx, &seg.Pieces[i], blocks[i]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// restorePiece frees or unmaps the block of a piece that is not used.
func (c *Cache) restorePiece(ctx context.Context, piece *restore.Piece, b Block) error {
	if piece.State == restore.Used {
		piece.Block = b
		return nil
	}
	if err := b.Free(); err != nil {
		return err
	}
	b.chunk.Requested = restore.UnknownRequest
	if piece.State == restore.Unmapped {
		return c.grower.unmapPiece(ctx, b.handout.shard, b.chunk)
	}
	return nil
}

// restore allocates a segment and a block for each of its pieces.
func (g *grower) restore(ctx context.Context, r *request, seg *restore.Segment) ([]Block, error) {
	if err := g.lock(ctx); err != nil {
		return nil, err
	}
	defer g.unlock()
	var m *placement.Chunk
	if seg.Expandable {
		if g.vmm == nil {
			return nil, fmt.Errorf("%w: an expandable segment, without the option expandable_segments", ErrInvalid)
		}
		p, err := g.vmm.Reserve(seg.Range)
		if err != nil {
			return nil, err
		}
		reserved, err := g.addRange(r, p, seg.Range)
		if err != nil {
			return nil, err
		}
		if m, err = g.mapFront(ctx, reserved, reserved, r.Bytes, r); err != nil {
			return nil, err
		}
		g.shards.lockAll()
		r.Pool.CountDriverCalls(1)
		if end := m.Next(); end != nil {
			end.Requested = restore.UnknownRequest
		}
	} else {
		p, err := g.driverAlloc(ctx, r.Bytes, r)
		if err != nil {
			return nil, err
		}
		if err := g.driverRanges.add(p, r.Bytes); err != nil {
			return nil, err
		}
		g.shards.lockAll()
		m = g.addSegment(r, p, r.Bytes)
	}
	defer g.shards.unlockAll()
	blocks := make([]Block, len(seg.Pieces))
	for i := range seg.Pieces {
		r.Bytes = seg.Pieces[i].Bytes
		r.Requested = r.Bytes
		if seg.Pieces[i].State == restore.Used {
			r.Requested = seg.Pieces[i].Requested
		}
		if r.Bytes > m.Size() {
			return nil, fmt.Errorf("%w: piece %d has %d bytes, and %d are left of its segment", ErrInvalid, i, r.Bytes, m.Size())
		}
		r.shard.handOutFresh(m, r, m.FitOf(r.Bytes))
		blocks[i] = r.block
	}
	return blocks, nil
}

// unmapPiece unmaps a free chunk of whole granules.
func (g *grower) unmapPiece(ctx context.Context, s *shard, m *placement.Chunk) error {
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	s.mu.Lock()
	m.TakeOut()
	s.mu.Unlock()
	return g.shrink(ctx, taken{s, m}, math.MaxInt64)
}
