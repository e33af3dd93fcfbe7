package transfer

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// Batch is a list of uploads, kernels and outputs (read-backs of blocks) that one Submit queues on
// a stream, with one completion. Nothing runs before Submit. They run in the order in which they
// were added. If the device is a [device.BatchCopier], consecutive copies in one direction are one
// operation, unless two of them write the same bytes. All data is in a few pinned buffers.
//
//	b := pool.NewBatch()
//	defer b.Close()
//	err := b.Upload(ctx, in, 0, data)
//	err = b.Launch(kernel, in, out)
//	i, err := b.Output(ctx, out, 0, n)
//	_, err = b.Submit(ctx, stream)
//	err = b.CollectOne(ctx, i, &result)
//
// Its methods may be called from any goroutine. They don't block while another goroutine's call
// allocates pinned memory or submits the batch: what is added meanwhile becomes part of the batch,
// or is refused if the batch is being submitted.
type Batch struct {
	pool *Pool

	mu      sync.Mutex // not held during a driver call or Submit's queueing
	state   batchState
	closing bool // Close was called during Submit
	steps   []step
	arenas  *arenas
	dropped runtime.Cleanup // releases arenas; set when there is a first one
	outputs []output
	blocks  []memcache.Block // to record on the stream
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
	writes bool // it holds outputs
}

// step is a kernel, or consecutive copies in one direction.
type step struct {
	op     Op // OpH2D, OpD2H or OpLaunch
	host   [][]byte
	device []device.Ptr
	launch device.Launch
}

type output struct {
	memory []byte // in an arena, without padding
}

// arenas are the pinned memory of a batch. They don't refer to the batch, so that the garbage
// collector can find it dropped. While the batch exists its lock guards them.
type arenas struct {
	pool *Pool
	list []arena
}

// NewBatch returns an empty batch. The caller must close it. If a batch is dropped instead, its
// memory goes back to the pool when the garbage collector finds the batch (Stats.DroppedBatches).
func (p *Pool) NewBatch() *Batch { return &Batch{pool: p, arenas: &arenas{pool: p}} }

// drop releases the arenas of a batch that cannot be reached any more.
func (a *arenas) drop() {
	if err := a.release(); err == nil { // otherwise the pool is closed
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

// open returns an error if nothing can be added.
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

// String returns a text such as "batch on host, submitted: 3 steps, 2 outputs".
func (b *Batch) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	state := [...]string{building: "not submitted", submitting: "being submitted", submitted: "submitted", failed: "failed", batchClosed: "closed"}[b.state]
	return fmt.Sprintf("batch on %s, %s: %d steps, %d outputs", b.pool.dev.Name(), state, len(b.steps), len(b.outputs))
}
