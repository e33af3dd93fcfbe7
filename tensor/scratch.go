package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/memcache"
)

// withScratch calls f with scratch memory for n elements of like's dtype, which is free for what is queued after it.
func (rt *Runtime) withScratch(ctx context.Context, op string, like *Tensor, n int, f func(memcache.Block) error) error {
	block, err := rt.cache.Alloc(ctx, int64(n)*int64(like.dtype.Size()), rt.stream)
	if err != nil {
		return fmt.Errorf("tensor: %s: scratch memory: %w", op, err)
	}
	defer func() { rt.parked.add(block.FreeContext(ctx)) }()
	return f(block)
}
