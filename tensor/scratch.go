package tensor

import (
	"context"

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
