package transfer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// A large copy from or to ordinary memory is staged in chunks, by several goroutines: one processor copies memory more
// slowly than the device does. Each goroutine has two pinned buffers, and uses one while the device copies the other.
const (
	chunkBytes  = 2 << 20
	maxStagers  = 8
	wholeStaged = 32 << 20 // up to here Download writes nothing before it has everything
)

// Upload queues on stream a copy of src to dst, at dstOffset. src is ordinary Go memory, which the call
// stages through pinned buffers; it may be reused when Upload returns. dst may be freed at once. The Copy
// ends with the last byte.
//
// Up to 2 MiB Upload returns without waiting for the device. Of more it waits until the device has copied
// all but the last 4 MiB a processor, 32 at most; an error on the way, ctx's included, leaves a part of dst written.
// Checks and errors before that are those of [Pool.H2D].
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

// Download copies len(dst) bytes from src, at srcOffset, to dst, which is ordinary Go memory: it queues the
// copy on stream, behind what is queued there, into pinned buffers, waits, and fills dst. On an error dst
// is as it was; if it has more than 32 MiB, one of the device or of ctx may leave a part of it written. When ctx ends
// first the copy goes on, and the buffers are reused when it is done. Checks and errors are those of [Pool.D2H].
//
// Where there is no pinned memory for all of it at once, up to 32 MiB go by way of as much ordinary memory, in pieces of 2 MiB
// like what is larger. For these there must be two buffers at least; else the error is a [LimitError], or the device's.
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

// getWhole is Get, but gives nothing cached back for a buffer that is larger than all that the pool may hold.
func (p *Pool) getWhole(ctx context.Context, bytes int64) (Buffer, error) {
	if size := RoundSize(bytes); p.limit > 0 && size > p.limit {
		return Buffer{}, &LimitError{Requested: size, Limit: p.limit}
	}
	return p.Get(ctx, bytes)
}

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

// staged calls work on several goroutines, as many as there is memory for, each with two buffers of chunkBytes and a
// function that gives it the next chunk of bytes. It waits for all, and returns the first error, which ends the others'
// chunks.
func (p *Pool) staged(ctx context.Context, bytes int64, work func(context.Context, [2]Buffer, func() (at, n int64, ok bool)) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	chunks := func() (at, n int64, ok bool) {
		if ctx.Err() != nil {
			return 0, 0, false
		}
		at = next.Add(chunkBytes) - chunkBytes
		return at, min(bytes-at, chunkBytes), at < bytes
	}
	var group sync.WaitGroup
	for i := range min(int64(min(runtime.GOMAXPROCS(0), maxStagers)), (bytes+chunkBytes-1)/chunkBytes) {
		stages, err := p.stages(ctx)
		if i > 0 && (errors.Is(err, ErrLimit) || errors.Is(err, device.ErrOutOfMemory)) {
			break
		}
		if err != nil {
			cancel(err)
			break
		}
		group.Go(func() {
			defer stages[0].Release()
			defer stages[1].Release()
			if err := work(ctx, stages, chunks); err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

// stages are the buffers of one goroutine.
func (p *Pool) stages(ctx context.Context) (stages [2]Buffer, err error) {
	for i := range stages {
		if stages[i], err = p.Get(ctx, chunkBytes); err != nil {
			return stages, errors.Join(err, stages[0].Release())
		}
	}
	return stages, nil
}

// recordEnd records an event after everything that stream has queued.
func (p *Pool) recordEnd(stream device.Stream) (*completion, error) {
	ev, err := p.events.get()
	if err != nil {
		return nil, err
	}
	end, err := p.events.record(stream, ev)
	if err == nil {
		p.addOrphan(end)
	}
	return end, err
}
