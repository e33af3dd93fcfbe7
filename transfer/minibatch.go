package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/memcache"
)

// Minibatch is one batch of a [Loader] on the device. It is valid until Release.
type Minibatch struct {
	loader   *Loader
	slot     *slot
	index    int64
	waited   time.Duration
	bytes    []int64
	released atomic.Bool
}

// Index counts the batches of the epoch from 0.
func (b *Minibatch) Index() int64 { return b.index }

// Fields is the number of fields.
func (b *Minibatch) Fields() int { return len(b.bytes) }

// Field is the block of field i. Its first Bytes(i) bytes are the source's; the loader owns it, so it must
// not be freed. Work queued on the compute stream until Release may use it. Of a batch that was released,
// and for an i that is not 0 to Fields()-1, it is the zero Block.
func (b *Minibatch) Field(i int) memcache.Block {
	if i < 0 || i >= len(b.bytes) || b.released.Load() {
		return memcache.Block{}
	}
	return b.slot.blocks[i]
}

// Bytes is how many bytes the source filled in field i. It is 0 for an i that is not 0 to Fields()-1.
func (b *Minibatch) Bytes(i int) int64 {
	if i < 0 || i >= len(b.bytes) {
		return 0
	}
	return b.bytes[i]
}

// Waited is how long Next waited for this batch's data: near 0 if the source keeps up. Time spent because N
// steps were in flight is not in it.
func (b *Minibatch) Waited() time.Duration { return b.waited }

// Release ends the batch: the compute stream has all the work that uses it. The slot is overwritten when
// that is done. A second Release wraps [ErrReleased], one after the loader's Close [ErrClosed].
func (b *Minibatch) Release() error {
	if !b.released.CompareAndSwap(false, true) {
		return fmt.Errorf("transfer: Release of batch %d, which was %w before", b.index, ErrReleased)
	}
	l := b.loader
	if !l.gate.enter() {
		return fmt.Errorf("transfer: Release of batch %d: the loader is %w", b.index, ErrClosed)
	}
	defer l.gate.leave()
	err := l.compute.Record(b.slot.consumed)
	b.slot.used = err == nil
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held--
	switch {
	case err == nil:
		l.steps = append(l.steps, b.slot)
	case !l.compute.Closed():
		// Nothing says when the slot is free, so it is not used again, and the loader is over.
		err = fmt.Errorf("transfer: Release of batch %d: %w", b.index, err)
		if l.lost == nil {
			l.lost = err
			close(l.broken)
		}
		return err
	}
	l.free <- b.slot
	return nil
}

// Next returns the next batch of the epoch. Work that is then queued on the compute stream runs after its
// upload. io.EOF means that the epoch is over; the source's error, or the context's of Start, comes once, in
// the place of the batch, and io.EOF after it.
//
// Next waits for the source, and while N steps are in flight, until ctx ends; then nothing is lost, and the
// batch comes with the next call. A loop that holds all N+1 batches gets [ErrInFlight].
func (l *Loader) Next(ctx context.Context) (*Minibatch, error) {
	if err := l.take(ctx, "Next"); err != nil {
		return nil, err
	}
	defer l.pass()
	if l.epoch == nil {
		return nil, fmt.Errorf("transfer: Next before Start: %w", ErrInvalid)
	}
	end := l.pool.startNext(ctx)
	b, err := l.next(ctx)
	end(b, err)
	return b, err
}

func (l *Loader) next(ctx context.Context) (*Minibatch, error) {
	if err := l.throttle(ctx); err != nil {
		return nil, err
	}
	begin := time.Now()
	it, ok, err := l.receive(ctx)
	waited := time.Since(begin)
	l.mu.Lock()
	l.stats.Waited += waited
	l.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, io.EOF
	case it.err != nil:
		return nil, it.err
	}
	if err := it.slot.hand(l.compute); err != nil {
		l.free <- it.slot
		return nil, fmt.Errorf("transfer: Next: %w", err)
	}
	b := &Minibatch{loader: l, slot: it.slot, index: it.index, waited: waited, bytes: make([]int64, len(it.slot.fields))}
	for i, f := range it.slot.fields {
		b.bytes[i] = int64(len(f))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held++
	l.stats.Batches++
	l.stats.Bytes += it.slot.bytes()
	return b, nil
}

// throttle waits until fewer than N steps are in flight.
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
			return fmt.Errorf("transfer: Next: all %d batches of the ring are %w: Release one", len(l.slots), ErrInFlight)
		}
		if len(l.steps) == 0 || len(l.steps)+l.held < len(l.slots)-1 {
			l.stats.Throttled += time.Since(begin)
			l.mu.Unlock()
			return nil
		}
		oldest := l.steps[0]
		l.mu.Unlock()
		if err := oldest.await(ctx); err != nil {
			return fmt.Errorf("transfer: Next: waiting for an earlier step: %w", err)
		}
		l.mu.Lock()
		l.steps = append(l.steps[:0], l.steps[1:]...)
		l.mu.Unlock()
	}
}

// receive waits for an item of the epoch.
func (l *Loader) receive(ctx context.Context) (item, bool, error) {
	select {
	case it, ok := <-l.epoch.ready:
		return it, ok, nil
	case <-ctx.Done():
		return item{}, false, fmt.Errorf("transfer: Next: %w", ctx.Err())
	case <-l.broken:
		return item{}, false, l.lost
	case <-l.closed:
		return item{}, false, fmt.Errorf("transfer: Next: the loader is %w", ErrClosed)
	}
}

// startNext tells the observer that Next begins. The function it returns ends it.
func (p *Pool) startNext(ctx context.Context) func(*Minibatch, error) {
	if p.observer == nil {
		return func(*Minibatch, error) {}
	}
	e := Event{Op: OpNext, Device: p.dev.Name(), Queued: time.Now()}
	_, o := p.observer.Start(ctx, OpNext)
	if o == nil {
		return func(*Minibatch, error) {}
	}
	return func(b *Minibatch, err error) {
		e.Done = time.Now()
		if b != nil {
			e.Bytes, e.Waited = b.slot.bytes(), b.waited
		}
		if !errors.Is(err, io.EOF) {
			e.Err = err
		}
		o.End(e)
	}
}
