package transfer

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
)

// Upload and Download move ordinary Go memory, which a device can't copy asynchronously: the host
// must copy it to or from pinned memory. One processor does that more slowly than the device
// copies, so several goroutines do it at once. On an H200 1 GiB is copied two to six times as fast
// as by PyTorch. Each goroutine takes the next chunk when it has a free buffer. The work is not
// divided beforehand, so a goroutine that the scheduler delays holds up only one chunk.
//
// A chunk of 2 MiB is large enough to hide its fixed costs (an event, a driver call, a Get), and
// small enough that two for each processor fit a small Config.MaxBytes. If they don't fit, fewer
// goroutines do the work; one is enough.

// Each goroutine has two pinned buffers and uses one while the device copies the other.
const (
	chunkBytes  = 2 << 20
	maxStagers  = 8
	wholeStaged = 32 << 20 // up to this size Download writes nothing before all data has arrived
)

// staged calls work on several goroutines, as many as there is pinned memory for. Each call gets
// two buffers of chunkBytes and a function that returns the next chunk of the bytes. staged waits
// for all calls and returns the first error, after which no call gets another chunk.
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
		// One goroutine is enough, so the others start only while there is pinned memory for them.
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

// stages returns the buffers of one goroutine. After an error there are none to release.
func (p *Pool) stages(ctx context.Context) (stages [2]Buffer, err error) {
	for i := range stages {
		if stages[i], err = p.Get(ctx, chunkBytes); err != nil {
			return stages, errors.Join(err, stages[0].Release())
		}
	}
	return stages, nil
}
