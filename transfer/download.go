package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// A Download fills ordinary memory, so it must wait for the device. Up to 32 MiB it waits once,
// with all of it in one pinned buffer, and writes nothing before it has everything; beyond, pieces
// of 2 MiB arrive while others are copied out.

// Download copies len(dst) bytes from src, at srcOffset, to dst, which is ordinary Go memory: it
// queues the copy on stream, behind what is queued there, into pinned buffers, waits, and fills
// dst. On an error dst is as it was; if it has more than 32 MiB, one of the device or of ctx may
// leave a part of it written. When ctx ends first the copy goes on, and the buffers are reused when
// it is done. Checks and errors are those of [Pool.D2H].
//
// Where there is no pinned memory for all of it at once, up to 32 MiB go by way of as much ordinary
// memory, in pieces of 2 MiB like what is larger. For these there must be two buffers at least;
// else the error is a [LimitError], or the device's.
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
	defer p.gate.Leave() // until then no buffer is freed
	if bytes > wholeStaged {
		return p.downloadStaged(ctx, stream, dst, src, srcOffset)
	}
	b, err := p.getWhole(ctx, bytes)
	// No pinned memory for all of it: ordinary memory holds what has come, so that an error still leaves dst alone.
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

// getWhole is Get, but gives nothing cached back for a buffer that is larger than all that the pool
// may hold.
func (p *Pool) getWhole(ctx context.Context, bytes int64) (Buffer, error) {
	if size := roundSize(bytes); p.pinned.limit > 0 && size > p.pinned.limit {
		return Buffer{}, &LimitError{Requested: size, Limit: p.pinned.limit}
	}
	return p.Get(ctx, bytes)
}

// downloadStaged is a Download in chunks. Each goroutine copies a chunk out while its next one is
// on its way.
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
			// The one before is on its way while this one is queued.
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
