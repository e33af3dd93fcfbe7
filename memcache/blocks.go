package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// Blocks is a list of blocks that are freed together, such as the buffers of one kernel launch:
//
//	var launch memcache.Blocks
//	defer launch.Free()
//	x, err := launch.Alloc(ctx, cache, bytes, stream)
//
// The zero value is empty. One goroutine uses a Blocks at a time.
type Blocks struct{ list []Block }

// Alloc is [Cache.Alloc]. The block is freed by Blocks.Free, or earlier by the caller. An error
// leaves the blocks in b unchanged.
func (b *Blocks) Alloc(ctx context.Context, c *Cache, bytes int64, stream device.Stream) (Block, error) {
	if c == nil {
		return Block{}, fmt.Errorf("memcache: Blocks.Alloc: %w: the cache is nil", ErrInvalid)
	}
	block, err := c.Alloc(ctx, bytes, stream)
	if !block.IsZero() {
		b.list = append(b.list, block)
	}
	return block, err
}

// RecordStream calls [Block.RecordStream] on each block that was not freed yet.
func (b *Blocks) RecordStream(s device.Stream) error {
	var errs []error
	for _, block := range b.list {
		if err := block.RecordStream(s); err != nil && !errors.Is(err, ErrFreed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Free frees the blocks that were not freed yet, in reverse order, and leaves b empty. It continues
// after an error, and returns all errors.
func (b *Blocks) Free() error {
	var errs []error
	for i := len(b.list) - 1; i >= 0; i-- {
		if err := b.list[i].Free(); err != nil && !errors.Is(err, ErrFreed) {
			errs = append(errs, err)
		}
	}
	clear(b.list)
	b.list = b.list[:0]
	return errors.Join(errs...)
}
