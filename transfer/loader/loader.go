package loader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/internal/callgate"
)

// Loader uploads the batches of a [Source] while earlier ones are used.
//
// It has a ring of N+1 slots (N is [Config].Ahead), each with pinned memory and a block for every
// field, all allocated by New. Its goroutine calls the source to fill a slot's pinned memory and
// queues the upload on the copy stream, up to N batches ahead. [Loader.Next] makes the compute
// stream wait for the upload. [Minibatch.Release] makes the copy stream wait, before it overwrites
// the slot, for the work that the compute stream has queued until then. The host waits only in
// Next: for data, and so that at most N steps are in flight.
//
// Next and Start run on one goroutine at a time; a second one waits for the first. Batches may be
// released from any goroutine.
type Loader struct {
	pool     *transfer.Pool
	compute  device.Stream
	copy     device.Stream
	ownCopy  bool
	slots    []*slot       // the ring
	free     chan *slot    // slots that may be filled; its capacity is all slots
	turn     chan struct{} // holds one value while Next, Start or Close has the turn
	closed   chan struct{} // closed by Close
	broken   chan struct{} // closed when lost is set
	releases callgate.Gate // of Releases, so that Close waits for them

	epoch *epoch // guarded by turn

	mu    sync.Mutex // never held across a call of the device
	steps []*slot    // released slots not known to be consumed, in the order of release
	held  int        // batches that Next returned and that are not released
	lost  error      // of a Release that could not record the end of its slot's use
	stats Stats

	closing  sync.Once
	closeErr error
}

// Stats are the statistics of a loader since New.
type Stats struct {
	// Epochs counts the epochs begun, Batches the batches that Next returned, Bytes their bytes.
	Epochs, Batches, Bytes int64
	// Waited is the time that Next waited for data.
	Waited time.Duration
	// Throttled is the time that Next waited because N steps were in flight.
	Throttled time.Duration
}

// New returns a loader and allocates its ring: N+1 times the fields' capacities, in blocks of the
// copy stream and in pinned memory of p. [Batcher.From] or [Loader.Start] begins an epoch. The
// caller must close the loader before the pool and the cache.
func New(ctx context.Context, p *transfer.Pool, cfg Config) (*Loader, error) {
	ahead := cfg.Ahead
	if ahead == 0 {
		ahead = 2
	}
	if err := errors.Join(checkContext("New", ctx), check(p, cfg)); err != nil {
		return nil, err
	}
	l := &Loader{
		pool: p, compute: cfg.Compute, copy: cfg.Copy,
		free: make(chan *slot, ahead+1), turn: make(chan struct{}, 1), closed: make(chan struct{}), broken: make(chan struct{}),
	}
	if l.copy == nil {
		s, err := p.Device().NewStream(device.StreamOptions{})
		if err != nil {
			return nil, fmt.Errorf("loader: New: %w", err)
		}
		l.copy, l.ownCopy = s, true
	}
	for range ahead + 1 {
		s, err := l.newSlot(ctx, cfg)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("loader: New: %w", err), l.Close())
		}
		l.slots = append(l.slots, s)
		l.free <- s
	}
	return l, nil
}

// Stats returns the loader's statistics.
func (l *Loader) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// takeTurn takes the turn of Next and Start. The turn is a channel and not a lock, because a
// waiting goroutine must wake when ctx ends or the loader closes.
func (l *Loader) takeTurn(ctx context.Context, call string) error {
	if l.open() {
		if err := checkContext(call, ctx); err != nil {
			return err
		}
		select {
		case l.turn <- struct{}{}:
			if l.open() {
				return nil
			}
			l.passTurn() // Close had the turn first
		case <-l.closed:
		case <-ctx.Done():
			return fmt.Errorf("loader: %s: %w", call, ctx.Err())
		}
	}
	return fmt.Errorf("loader: %s: the loader is %w", call, transfer.ErrClosed)
}

// passTurn ends a turn.
func (l *Loader) passTurn() { <-l.turn }

// open reports whether Close has not been called yet.
func (l *Loader) open() bool {
	select {
	case <-l.closed:
		return false
	default:
		return true
	}
}

// Close cancels the epoch, waits for its source to return, and frees the ring. If batches are still
// held, the error counts them; their blocks are freed too, after the work that the compute stream
// has queued by then. Calling Close again returns the same error. Next and Start then return
// [transfer.ErrClosed].
func (l *Loader) Close() error {
	l.closing.Do(func() { l.closeErr = l.close() })
	return l.closeErr
}

// close wakes waiting calls, ends the epoch with its source, and waits for Releases, in this order.
// After that nothing uses the slots.
func (l *Loader) close() error {
	close(l.closed)
	l.turn <- struct{}{}
	defer l.passTurn()
	if l.epoch != nil {
		l.epoch.cancel()
		<-l.epoch.done
	}
	l.releases.Shut()
	var errs []error
	if l.held > 0 {
		errs = append(errs, fmt.Errorf("loader: Close of a loader with %d batches held: Release them first", l.held))
	}
	for _, s := range l.slots {
		errs = append(errs, s.close())
	}
	if l.ownCopy {
		errs = append(errs, l.copy.Close())
	}
	return errors.Join(errs...)
}

// String returns a text such as "loader on host: 12 batches, 1 held".
func (l *Loader) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("loader on %s: %d batches, %d held", l.pool.Device().Name(), l.stats.Batches, l.held)
}
