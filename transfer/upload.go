package transfer

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// An Upload has read its source when it returns. A small one does not wait for the device. A large
// one waits for its own earlier chunks, so that it does not need as much pinned memory as the
// source has bytes.

// Upload queues on stream a copy of src to dst, at dstOffset. src is ordinary Go memory, which is
// staged through pinned buffers; it may be reused when Upload returns. dst may be freed at once.
// The Copy is done when all bytes are copied.
//
// Up to 2 MiB Upload returns without waiting for the device. For larger sources it waits until the
// device has copied all but the last 4 MiB per processor, at most 32 MiB; an error after the first
// chunk, including ctx's, leaves a part of dst written. Checks and errors before that are those of
// [Pool.H2D].
func (p *Pool) Upload(ctx context.Context, stream device.Stream, dst memcache.Block, dstOffset int64, src []byte) (*Copy, error) {
	bytes := int64(len(src))
	if err := p.checkStream("Upload", stream); err != nil {
		return nil, err
	}
	if err := checkRange("Upload", dst, dstOffset, bytes, dst.Size()); err != nil {
		return nil, err
	}
	if err := p.enter(ctx, "Upload"); err != nil {
		return nil, err
	}
	defer p.gate.Leave() // keeps the buffers from being freed
	if bytes == 0 {
		return &Copy{}, nil
	}
	put := func(ctx context.Context, b Buffer, at, n int64) (*Copy, error) {
		if err := b.Wait(ctx); err != nil {
			return nil, err
		}
		copy(b.memory(), src[at:at+n])
		return p.H2D(ctx, stream, dst, dstOffset+at, b, 0, n)
	}
	if bytes <= chunkBytes {
		b, err := p.Get(ctx, bytes)
		if err != nil {
			return nil, fmt.Errorf("transfer: Upload: %w", err)
		}
		defer b.Release()
		return put(ctx, b, 0, bytes)
	}
	err := p.staged(ctx, bytes, func(ctx context.Context, stages [2]Buffer, chunks func() (at, n int64, ok bool)) error {
		for i := 0; ; i++ {
			at, n, ok := chunks()
			if !ok {
				return nil
			}
			if _, err := put(ctx, stages[i%2], at, n); err != nil {
				return err
			}
		}
	})
	if err == nil {
		var end *completion
		if end, err = p.recordEnd(stream); err == nil {
			return &Copy{end, bytes}, nil
		}
	}
	return nil, fmt.Errorf("transfer: Upload of %d bytes: %w", bytes, err)
}
