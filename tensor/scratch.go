package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/memcache"
)

// lasting returns the context for memory that the runtime keeps for all operations. It has no
// lifetime and no private pool, and its label has no module or step.
func (rt *Runtime) lasting(ctx context.Context) context.Context {
	return memcache.WithLabel(rt.cache.WithoutPool(Detached(ctx)), memcache.Label{Category: memcache.CategoryWorkspace})
}

// allocScratch allocates a tensor for an operation's own use. The operation releases it; it belongs
// to no lifetime.
func (rt *Runtime) allocScratch(ctx context.Context, op string, dtype Dtype, shape Shape) (*Tensor, error) {
	return rt.allocIn(ctx, op, dtype, shape, true)
}
