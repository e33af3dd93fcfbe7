package memcache

import (
	"context"
	"math"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// remap unmaps free granules of any stream and size in the request's pool, as many bytes as the
// request's segment is about to grow by. No free chunk fits the request alone, but together their
// memory suffices, mapped at other addresses. The cache then reserves no more than before. PyTorch
// unmaps only in a flush, after the driver has run out of memory. remap costs an unmapping and a
// mapping for each granule, and pays off where memory is short. With granules of 2 MiB, ResNet-50
// reserves 1.005 times what it allocates and GPT-2 1.008 times, but with 844 driver calls instead
// of 112, and 1,551 instead of 204. So it is off without Config.ExpandableRemap.
//
// Free chunks of other streams may be taken too. Their streams may still use them, but unmapping
// waits for the queued work, which is also why it is slow. The growth lock is held.
func (g *grower) remap(ctx context.Context, r *request) error {
	if !g.shards.config().ExpandableRemap {
		return nil
	}
	var err error
	for _, t := range g.takeGranules(r) {
		if err == nil {
			err = g.shrink(ctx, t, math.MaxInt64)
		} else {
			t.shard.putBack(t.chunk)
		}
	}
	return err
}

// takeGranules takes free chunks out of the index, the largest first, with as many granules as the
// request lacks. It leaves the chunk that is to grow, which is used first anyway.
func (g *grower) takeGranules(r *request) (victims []taken) {
	g.shards.lockAll()
	defer g.shards.unlockAll()
	if r.Pool.Pinned() {
		return nil
	}
	// The present size of the growing chunk is not needed again.
	grows, need := r.shard.arena.Growable(&r.Want), r.Bytes
	if grows != nil && !grows.Unmapped() {
		need -= grows.Size()
	}
	for _, s := range g.shards.list() {
		var chunks []*placement.Chunk
		chunks, need = s.arena.TakeGranules(r.Pool, need, grows)
		victims = append(victims, s.took(chunks)...)
	}
	return victims
}
