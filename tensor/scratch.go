package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/memcache"
)

// lasting is the context for memory that the runtime keeps for all operations: it is nobody's module or step, and in no private pool.
func (rt *Runtime) lasting(ctx context.Context) context.Context {
	return memcache.WithLabel(rt.cache.WithoutPool(Detached(ctx)), memcache.Label{Category: memcache.CategoryWorkspace})
}

// allocScratch is a tensor for an operation's own use, which it releases; it belongs to no lifetime.
func (rt *Runtime) allocScratch(ctx context.Context, op string, dtype Dtype, shape Shape) (*Tensor, error) {
	return rt.allocIn(ctx, op, dtype, shape, true)
}

// scratchBlock is memory for an operation's own use, which the caller frees. A block belongs to no lifetime, whatever ctx has.
func (rt *Runtime) scratchBlock(ctx context.Context, op string, bytes int64) (memcache.Block, error) {
	if err := rt.capturing.Load().admits(ctx, op); err != nil {
		return memcache.Block{}, err
	}
	b, err := rt.cache.AllocWorkspace(ctx, bytes, rt.stream)
	if err != nil {
		return b, fmt.Errorf("tensor: %s: scratch memory: %w", op, err)
	}
	return b, nil
}
