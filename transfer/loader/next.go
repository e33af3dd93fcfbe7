package loader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cistern-ml/cistern/transfer"
)

// Next returns the next batch of the epoch. Work that is queued on the compute stream afterwards
// runs after the batch's upload. io.EOF means the end of the epoch. An error of the source or of
// Start's context is returned once instead of the batch, and then io.EOF.
//
// Next waits for the source, and while N steps are in flight, until ctx ends. In that case no batch
// is lost; the next call returns it. If the device can't make the compute stream wait for a batch,
// the batch is lost, and the error is the device's. The copies of a batch count in the
// [transfer.Meter] of ctx, not in that of Start's context, and their use is reported with ctx
// ([transfer.Ahead]). If the caller holds all N+1 batches, the error wraps [transfer.ErrInFlight].
func (l *Loader) Next(ctx context.Context) (*Minibatch, error) { return l.nextOf(ctx, nil) }

// nextOf is Next for batches of epoch e alone, or of any epoch if e is nil.
func (l *Loader) nextOf(ctx context.Context, e *epoch) (*Minibatch, error) {
	if err := l.takeTurn(ctx, "Next"); err != nil {
		return nil, err
	}
	defer l.passTurn()
	if l.epoch == nil {
		return nil, fmt.Errorf("loader: Next before Start: %w", transfer.ErrInvalid)
	}
	if e != nil && e != l.epoch {
		return nil, fmt.Errorf("loader: another epoch of the loader has begun: %w: use one loader for each epoch that runs at the same time", transfer.ErrInvalid)
	}
	end := l.observeNext(ctx)
	b, waited, err := l.next(ctx)
	end(b, waited, err)
	return b, err
}

// next is Next for the goroutine that has the turn. waited is its wait for data.
func (l *Loader) next(ctx context.Context) (_ *Minibatch, waited time.Duration, err error) {
	// The waits for the device and for data are counted separately, because they have different
	// remedies.
	if err := l.throttle(ctx); err != nil {
		return nil, 0, err
	}
	begin := time.Now()
	it, ok, err := l.receive(ctx)
	waited = time.Since(begin)
	l.mu.Lock()
	l.stats.Waited += waited
	l.mu.Unlock()
	switch {
	case err != nil:
		return nil, waited, err
	case !ok:
		return nil, waited, io.EOF
	case it.err != nil:
		return nil, waited, it.err
	}
	it.slot.ahead.Use(ctx)
	// If compute can't wait for the batch, the batch is lost, but its slot is not.
	if err := it.slot.handOver(l.compute); err != nil {
		l.free <- it.slot
		return nil, waited, fmt.Errorf("loader: Next: %w", err)
	}
	b := &Minibatch{loader: l, slot: it.slot, index: it.index, waited: waited, bytes: make([]int64, len(it.slot.fields))}
	for i, f := range it.slot.fields {
		b.bytes[i] = int64(len(f))
		if len(f) > 0 {
			l.pool.Charge(ctx, transfer.OpH2D, 1, b.bytes[i])
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held++
	l.stats.Batches++
	l.stats.Bytes += it.slot.bytes()
	return b, waited, nil
}

// throttle waits until fewer than N steps are in flight. Without it the host would queue work on
// the compute stream until that is full, and the memory of all that work would stay allocated. The
// host's measurements of a step would then belong to another step.
func (l *Loader) throttle(ctx context.Context) error {
	begin := time.Now()
	for {
		l.mu.Lock()
		if l.lost != nil {
			defer l.mu.Unlock()
			return l.lost
		}
		if l.held == len(l.slots) {
			l.mu.Unlock()
			return fmt.Errorf("loader: Next: all %d batches of the ring are %w: Release one", len(l.slots), transfer.ErrInFlight)
		}
		if len(l.steps) == 0 || len(l.steps)+l.held < len(l.slots)-1 {
			l.stats.Throttled += time.Since(begin)
			l.mu.Unlock()
			return nil
		}
		// Steps end in their order, so the oldest is the first to end. Only Next removes from
		// steps, and it has the turn.
		oldest := l.steps[0]
		l.mu.Unlock()
		if err := oldest.awaitConsumed(ctx); err != nil {
			return fmt.Errorf("loader: Next: waiting for an earlier step: %w", err)
		}
		l.mu.Lock()
		l.steps = append(l.steps[:0], l.steps[1:]...)
		l.mu.Unlock()
	}
}

// receive waits for an item of the epoch, and wakes when ctx ends, the loader closes, or a Release
// sets lost.
func (l *Loader) receive(ctx context.Context) (item, bool, error) {
	select {
	case it, ok := <-l.epoch.ready:
		return it, ok, nil
	case <-ctx.Done():
		return item{}, false, fmt.Errorf("loader: Next: %w", ctx.Err())
	case <-l.broken:
		return item{}, false, l.lost
	case <-l.closed:
		return item{}, false, fmt.Errorf("loader: Next: the loader is %w", transfer.ErrClosed)
	}
}

// observeNext notifies the pool's observer that Next begins. The returned function reports its end.
func (l *Loader) observeNext(ctx context.Context) func(*Minibatch, time.Duration, error) {
	observer := l.pool.Observer()
	if observer == nil {
		return func(*Minibatch, time.Duration, error) {}
	}
	e := transfer.OpInfo{Op: transfer.OpNext, Device: l.pool.Device().Name(), Queued: time.Now()}
	_, o := observer.Start(ctx, transfer.OpNext)
	if o == nil {
		return func(*Minibatch, time.Duration, error) {}
	}
	return func(b *Minibatch, waited time.Duration, err error) {
		e.Done, e.Waited = time.Now(), waited
		if b != nil {
			e.Bytes = b.slot.bytes()
		}
		if !errors.Is(err, io.EOF) {
			e.Err = err
		}
		o.End(e)
	}
}
