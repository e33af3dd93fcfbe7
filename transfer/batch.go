package transfer

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// Batch is a list of copies and kernels that one Submit queues on a stream, with one completion:
// uploads to blocks, kernels, and outputs that blocks are read back to. Nothing runs before Submit;
// then they run in the order in which they were added, neighbours of one kind as one operation
// where the device can ([device.BatchCopier]) and no two of them write the same bytes. All data
// lies in a few pinned buffers.
//
//	b := pool.NewBatch()
//	defer b.Close()
//	err := b.Upload(ctx, in, 0, data)
//	err = b.Launch(kernel, in, out)
//	i, err := b.Output(ctx, out, 0, n)
//	_, err = b.Submit(ctx, stream)
//	err = b.CollectOne(ctx, i, &result)
//
// Its methods may be called from any goroutine. Nothing waits while another asks the driver for
// memory or submits: what is added meanwhile is in the batch, or refused if that was too late.
type Batch struct {
	pool *Pool

	mu      sync.Mutex // not held while the driver allocates for the batch, nor while it is submitted
	state   batchState
	closing bool // Close came while it was submitted
	steps   []step
	arenas  *arenas
	dropped runtime.Cleanup // of arenas, from the first one on
	outputs []output
	blocks  []memcache.Block // to be recorded on the stream
	done    *Copy            // of Submit
	err     error            // of a Submit that failed
}

type batchState uint8

const (
	building batchState = iota
	submitting
	submitted
	failed
	batchClosed
)

// arena is a pinned buffer that a batch fills from its start.
type arena struct {
	buffer Buffer
	used   int64
	writes bool // outputs are written to it
}

// step is one kind of operation on a stream.
type step struct {
	op     Op // OpH2D, OpD2H or OpLaunch
	host   [][]byte
	device []device.Ptr
	launch device.Launch
}

// output is where an output lies.
type output struct {
	memory []byte // of the bytes that were asked for, without padding
}

// arenas are the pinned memory of a batch. They don't refer to it, so that the garbage collector
// can find it dropped. They are guarded by the batch's lock, as long as the batch is there.
type arenas struct {
	pool *Pool
	list []arena
}

// NewBatch begins a batch. It must be closed: the memory of a batch that is dropped instead comes
// back when the garbage collector finds it (Stats.DroppedBatches), as if it were closed then.
func (p *Pool) NewBatch() *Batch { return &Batch{pool: p, arenas: &arenas{pool: p}} }

// drop releases the arenas of a batch that cannot be reached any more.
func (a *arenas) drop() {
	if err := a.release(); err == nil { // else the pool is closed
		a.pool.droppedBatches.Add(1)
	}
}

func (a *arenas) release() error {
	var errs []error
	for _, a := range a.list {
		errs = append(errs, a.buffer.Release())
	}
	return errors.Join(errs...)
}

// open says why nothing can be added.
func (b *Batch) open(call string) error {
	switch b.state {
	case building:
		return nil
	case batchClosed:
		return fmt.Errorf("transfer: %s: the batch is %w", call, ErrClosed)
	default:
		return fmt.Errorf("transfer: %s: the batch was submitted: %w: want another batch", call, ErrInvalid)
	}
}

// String is such as "batch on host, submitted: 3 steps, 2 outputs".
func (b *Batch) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	state := [...]string{building: "not submitted", submitting: "being submitted", submitted: "submitted", failed: "failed", batchClosed: "closed"}[b.state]
	return fmt.Sprintf("batch on %s, %s: %d steps, %d outputs", b.pool.dev.Name(), state, len(b.steps), len(b.outputs))
}
