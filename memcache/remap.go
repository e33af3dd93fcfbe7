package memcache

import (
	"context"
	"math"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// remap unmaps free granules, of any stream and size, in the request's pool, for as many bytes as the request's segment is
// about to grow by. None of the free chunks fits the request by itself, but their memory does, at other addresses: the
// cache then reserves no more than before. PyTorch unmaps only in a flush, when the driver has nothing left. It costs
// an unmapping and a mapping for each granule, and pays where memory is short: with granules of 2 MiB ResNet-50 reserves
// 1.005 times what it allocates and GPT-2 1.008 times, but with 844 calls of the driver in place of 112, and 1,551 in place
// of 204. So it is off without Config.ExpandableRemap.
// Free chunks of other streams may be taken too: their streams may still be using them, but unmapping waits for what is
// queued, which is also why it is slow. The growth lock is held.
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

// takeGranules takes out of the index, the largest first, free chunks with as many granules as the request lacks; not the
// chunk that is to grow, which comes first by itself.
func (g *grower) takeGranules(r *request) (victims []taken) {
	g.shards.lockAll()
	defer g.shards.unlockAll()
	if r.Pool.Pinned() {
		return nil
	}
	// What the chunk that grows has already is not needed.
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
