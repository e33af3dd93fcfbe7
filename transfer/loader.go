package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// LoaderConfig are the options of a [Loader].
type LoaderConfig struct {
	// Cache gives the device memory of the ring.
	Cache *memcache.Cache
	// Compute is the stream that the batches are used on.
	Compute device.Stream
	// Copy is the stream that uploads. nil: the loader makes one, and closes it.
	Copy device.Stream
	// Fields are the capacities in bytes of a batch's fields, such as images and labels; each at least 1.
	Fields []int64
	// Ahead is N: how many batches are ready or on their way while one is used, and how many steps may
	// be in flight. 0 is 2.
	Ahead int
}

// Loader uploads the batches of a [Source] while earlier ones are used.
//
// It has a ring of N+1 slots, each with pinned memory and a block for every field, all allocated by
// NewLoader. Its goroutine lets the source fill a slot's pinned memory and queues the upload on the copy
// stream, up to N batches ahead. [Loader.Next] makes the compute stream wait for the upload, and
// [Minibatch.Release] makes the copy stream wait, before it overwrites the slot, for what the compute stream
// was given until then. The host waits only in Next: for data, and so that at most N steps are in flight.
//
// Next and Start are for one goroutine at a time; a second one waits for the first. Batches may be released
// from any.
type Loader struct {
	pool    *Pool
	compute device.Stream
	copy    device.Stream
	ownCopy bool
	slots   []*slot
	free    chan *slot // that may be filled
	turn    chan struct{}
	closed  chan struct{}
	broken  chan struct{} // closed when lost is set
	gate    gate          // of Release

	epoch *epoch // guarded by turn

	mu    sync.Mutex
	steps []*slot // released, in that order, not known to be consumed
	held  int     // batches that Next returned and that were not released
	lost  error   // of a Release that could not say when its slot is free
	stats LoaderStats

	closing  sync.Once
	closeErr error
}

// LoaderStats is what a loader has done since NewLoader.
type LoaderStats struct {
	// Epochs counts Starts, Batches what Next returned, Bytes the bytes in them.
	Epochs, Batches, Bytes int64
	// Waited is the time that Next waited for data.
	Waited time.Duration
	// Throttled is the time that Next waited because N steps were in flight.
	Throttled time.Duration
}

// NewLoader makes a loader and allocates its ring: (N+1) times the fields' capacities, in blocks of the
// copy stream and in pinned memory of p. Start begins an epoch. It must be closed, before pool and cache.
func NewLoader(ctx context.Context, p *Pool, cfg LoaderConfig) (*Loader, error) {
	ahead := cfg.Ahead
	if ahead == 0 {
		ahead = 2
	}
	if err := errors.Join(checkContext("NewLoader", ctx), checkLoader(p, cfg)); err != nil {
		return nil, err
	}
	l := &Loader{
		pool: p, compute: cfg.Compute, copy: cfg.Copy,
		free: make(chan *slot, ahead+1), turn: make(chan struct{}, 1), closed: make(chan struct{}), broken: make(chan struct{}),
	}
	if l.copy == nil {
		s, err := p.dev.NewStream(device.StreamOptions{})
		if err != nil {
			return nil, fmt.Errorf("transfer: NewLoader: %w", err)
		}
		l.copy, l.ownCopy = s, true
	}
	for range ahead + 1 {
		s, err := l.newSlot(ctx, cfg)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("transfer: NewLoader: %w", err), l.Close())
		}
		l.slots = append(l.slots, s)
		l.free <- s
	}
	return l, nil
}

func checkLoader(p *Pool, cfg LoaderConfig) error {
	if p == nil || cfg.Cache == nil {
		return fmt.Errorf("transfer: NewLoader without a pool or a cache: %w", ErrInvalid)
	}
	if cfg.Cache.Device().ID() != p.dev.ID() {
		return fmt.Errorf("transfer: NewLoader with a cache of %s: %w: want one of the pool's device %s",
			cfg.Cache.Device().Name(), ErrInvalid, p.dev.Name())
	}
	if err := p.checkStream("NewLoader", cfg.Compute); err != nil {
		return err
	}
	if cfg.Copy != nil {
		if err := p.checkStream("NewLoader", cfg.Copy); err != nil {
			return err
		}
	}
	if cfg.Ahead < 0 || cfg.Ahead > 1<<10 {
		return fmt.Errorf("transfer: NewLoader with Ahead %d: %w: want 1 to %d, or 0 for 2", cfg.Ahead, ErrRange, 1<<10)
	}
	if len(cfg.Fields) == 0 {
		return fmt.Errorf("transfer: NewLoader without fields: %w: want the capacity of each", ErrInvalid)
	}
	for i, n := range cfg.Fields {
		if n < 1 || n > maxBytes {
			return fmt.Errorf("transfer: NewLoader: field %d of %d bytes: %w: want 1 to %d", i, n, ErrRange, int64(maxBytes))
		}
	}
	return nil
}

// Stats returns what the loader has done.
func (l *Loader) Stats() LoaderStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// take takes the turn of Next and Start.
func (l *Loader) take(ctx context.Context, call string) error {
	if l.open() {
		if err := checkContext(call, ctx); err != nil {
			return err
		}
		select {
		case l.turn <- struct{}{}:
			if l.open() {
				return nil
			}
			l.pass() // Close had it before
		case <-l.closed:
		case <-ctx.Done():
			return fmt.Errorf("transfer: %s: %w", call, ctx.Err())
		}
	}
	return fmt.Errorf("transfer: %s: the loader is %w", call, ErrClosed)
}

func (l *Loader) pass() { <-l.turn }

func (l *Loader) open() bool {
	select {
	case <-l.closed:
		return false
	default:
		return true
	}
}

// Close gives up the epoch, waits for its source to return, and gives back the ring. Batches still held are
// reported as an error, and their blocks are freed too: after what the compute stream has queued by now.
// Calling Close again returns the same error; Next and Start return [ErrClosed] from then on.
func (l *Loader) Close() error {
	l.closing.Do(func() { l.closeErr = l.close() })
	return l.closeErr
}

func (l *Loader) close() error {
	close(l.closed)
	l.turn <- struct{}{}
	defer l.pass()
	if l.epoch != nil {
		l.epoch.cancel()
		<-l.epoch.done
	}
	l.gate.shut()
	var errs []error
	if l.held > 0 {
		errs = append(errs, fmt.Errorf("transfer: Close of a loader with %d batches held: Release them first", l.held))
	}
	for _, s := range l.slots {
		errs = append(errs, s.close())
	}
	if l.ownCopy {
		errs = append(errs, l.copy.Close())
	}
	return errors.Join(errs...)
}
