package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// A Download fills ordinary memory, so it must wait for the device. Up to 32 MiB it uses one pinned
// buffer, waits once, and writes nothing before all data has arrived. Larger ones go in pieces of 2
// MiB, which arrive while earlier pieces are copied out.

// Download copies len(dst) bytes from src, at srcOffset, to dst, which is ordinary Go memory. It
// queues copies to pinned buffers on stream, after the work queued there, waits for them, and fills
// dst. On an error dst is unchanged, except that with more than 32 MiB an error of the device or of
// ctx may leave a part of it written. If ctx ends first, the copies continue, and the pool reuses
// the buffers when they are done. Checks and errors are those of [Pool.D2H].
//
// If there is no pinned memory for up to 32 MiB at once, Download allocates as much ordinary memory
// and fills that in pieces of 2 MiB, as for larger copies. Pieces need pinned memory for at least
// two buffers; otherwise the error is a [LimitError], or the device's.
func (p *Pool) Download(ctx context.Context, stream device.Stream, dst []byte, src memcache.Block, srcOffset int64) error {
	bytes := int64(len(dst))
	if err := p.checkStream("Download", stream); err != nil {
		return err
	}
	if err := checkRange("Download", src, srcOffset, bytes, src.Size()); err != nil {
		return err
	}
	if err := p.enter(ctx, "Download"); err != nil {
		return err
	}
	defer p.gate.Leave() // keeps the buffers from being freed
	if bytes > wholeStaged {
		return p.downloadStaged(ctx, stream, dst, src, srcOffset)
	}
	b, err := p.getWhole(ctx, bytes)
	// Without pinned memory for all of it, the data is collected in ordinary memory, so that an
	// error still leaves dst unchanged.
	if bytes > chunkBytes && (errors.Is(err, ErrLimit) || errors.Is(err, device.ErrOutOfMemory)) {
		whole := make([]byte, bytes)
		if err := p.downloadStaged(ctx, stream, whole, src, srcOffset); err != nil {
			return err
		}
		copy(dst, whole)
		return nil
	}
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
	copy(dst, b.memory())
	return nil
}

// getWhole is Get, except that it fails without freeing cached memory if the buffer alone exceeds
// the pool's limit.
func (p *Pool) getWhole(ctx context.Context, bytes int64) (Buffer, error) {
	if size := roundSize(bytes); p.pinned.limit > 0 && size > p.pinned.limit {
		return Buffer{}, &LimitError{Requested: size, Limit: p.pinned.limit}
	}
	return p.Get(ctx, bytes)
}

// downloadStaged is a Download in chunks. Each goroutine copies a chunk out while its next one is
// in flight.
func (p *Pool) downloadStaged(ctx context.Context, stream device.Stream, dst []byte, src memcache.Block, srcOffset int64) error {
	err := p.staged(ctx, int64(len(dst)), func(ctx context.Context, stages [2]Buffer, chunks func() (at, n int64, ok bool)) error {
		var queued [2]struct {
			copy  *Copy
			at, n int64
		}
		for i := 0; ; i++ {
			at, n, ok := chunks()
			if ok {
				c, err := p.D2H(ctx, stream, stages[i%2], 0, src, srcOffset+at, n)
				if err != nil {
					return err
				}
				queued[i%2].copy, queued[i%2].at, queued[i%2].n = c, at, n
			}
			// The previous chunk was in flight while this one was queued.
			q := &queued[(i+1)%2]
			if q.copy != nil {
				if err := q.copy.Wait(ctx); err != nil {
					return err
				}
				copy(dst[q.at:q.at+q.n], stages[(i+1)%2].memory())
				q.copy = nil
			} else if !ok {
				return nil
			}
		}
	})
	if err != nil {
		return fmt.Errorf("transfer: Download of %d bytes: %w", len(dst), err)
	}
	return nil
}
