package transfer

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// An Upload copies its source before it returns, and needs no more of it. A small one does not wait
// for the device at all; a large one waits for its own earlier chunks, since pinned memory for all
// of it at once would be as large as the source.

// Upload queues on stream a copy of src to dst, at dstOffset. src is ordinary Go memory, which the
// call stages through pinned buffers; it may be reused when Upload returns. dst may be freed at
// once. The Copy ends with the last byte.
//
// Up to 2 MiB Upload returns without waiting for the device. Of more it waits until the device has
// copied all but the last 4 MiB a processor, 32 at most; an error on the way, ctx's included,
// leaves a part of dst written. Checks and errors before that are those of [Pool.H2D].
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
	defer p.gate.Leave() // until then no buffer is freed
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
