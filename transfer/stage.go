package transfer

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// A large upload is staged in chunks through a few buffers: while the device copies one, the host fills the
// next.
const (
	chunkBytes = 4 << 20
	maxStages  = 3
)

// Upload queues on stream a copy of src to dst, at dstOffset. src is ordinary Go memory, which the call
// stages through pinned buffers; it may be reused when Upload returns. dst may be freed at once. The Copy
// ends with the last byte.
//
// Up to 4 MiB Upload returns without waiting for the device. Of more it waits until the device has copied
// all but the last 12 MiB; an error on the way, ctx's included, leaves a part of dst written. Checks and
// errors before that are those of [Pool.H2D].
func (p *Pool) Upload(ctx context.Context, stream device.Stream, dst memcache.Block, dstOffset int64, src []byte) (*Copy, error) {
	bytes := int64(len(src))
	if err := p.checkStream("Upload", stream); err != nil {
		return nil, err
	}
	if err := checkRange("Upload", dst, dstOffset, bytes, dst.Size()); err != nil {
		return nil, err
	}
	if bytes == 0 {
		return p.H2D(ctx, stream, dst, dstOffset, &Buffer{pool: p}, 0, 0)
	}
	var stages [maxStages]*Buffer
	defer func() {
		for _, b := range stages {
			if b != nil {
				// It can't fail: no one else has the buffer, and a closed pool has it already.
				_ = b.Release()
			}
		}
	}()
	var last *Copy
	for done, i := int64(0), 0; done < bytes; i++ {
		n := min(bytes-done, chunkBytes)
		b, err := p.stage(ctx, &stages[i%maxStages], n)
		if err != nil {
			return nil, fmt.Errorf("transfer: Upload of %d bytes after %d: %w", bytes, done, err)
		}
		copy(b.bytes, src[done:done+n])
		if last, err = p.H2D(ctx, stream, dst, dstOffset+done, b, 0, n); err != nil {
			return nil, fmt.Errorf("transfer: Upload of %d bytes after %d: %w", bytes, done, err)
		}
		done += n
	}
	return &Copy{last.mark, bytes}, nil
}

// stage makes *b a buffer that may be filled with n bytes.
func (p *Pool) stage(ctx context.Context, b **Buffer, n int64) (*Buffer, error) {
	if *b != nil {
		return *b, (*b).Wait(ctx)
	}
	var err error
	*b, err = p.Get(ctx, n)
	return *b, err
}

// Download copies len(dst) bytes from src, at srcOffset, to dst, which is ordinary Go memory: it queues the
// copy on stream, behind what is queued there, into a pinned buffer, waits, and fills dst. On any error dst
// is as it was. When ctx ends first the copy goes on, and the buffer is reused when it is done. Checks and
// errors are those of [Pool.D2H].
func (p *Pool) Download(ctx context.Context, stream device.Stream, dst []byte, src memcache.Block, srcOffset int64) error {
	bytes := int64(len(dst))
	if err := p.checkStream("Download", stream); err != nil {
		return err
	}
	if err := checkRange("Download", src, srcOffset, bytes, src.Size()); err != nil {
		return err
	}
	b, err := p.Get(ctx, bytes)
	if err != nil {
		return fmt.Errorf("transfer: Download: %w", err)
	}
	defer b.Release()
	c, err := p.D2H(ctx, stream, b, 0, src, srcOffset, bytes)
	if err != nil {
		return fmt.Errorf("transfer: Download: %w", err)
	}
	if err := c.Wait(ctx); err != nil {
		return fmt.Errorf("transfer: Download: %w", err)
	}
	copy(dst, b.bytes)
	return nil
}
