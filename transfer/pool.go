package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// DefaultMaxCachedBytes is the budget of a Config without one.
const DefaultMaxCachedBytes = 256 << 20

// Config are the options of a [Pool].
type Config struct {
	// MaxCachedBytes is how much pinned memory the pool keeps for later Gets. What is over it goes back to
	// the driver, least recently used first. 0 is [DefaultMaxCachedBytes]; negative keeps none.
	MaxCachedBytes int64
	// Observer is told of copies and driver calls. nil: nobody is, and it costs nothing.
	Observer Observer
}

// Pool is a cache of pinned host memory, and the copies between it and the blocks of a memcache.Cache on
// the same device.
//
// All methods may be called from any goroutine.
type Pool struct {
	dev      device.Device
	budget   int64
	observer Observer
	notifier *notifier // nil without an observer
	events   events
	gate     gate
	copied   [2]struct{ copies, bytes atomic.Int64 } // by OpH2D, OpD2H

	mu        sync.Mutex
	idle      [classes][]*slab // by class, the last released last
	tainted   []*slab          // to be freed
	queues    []*queue         // of released buffers whose copies are not done, by stream
	forgotten int              // marks without a slab in queues
	first     *slab            // all of the pool's slabs
	clock     uint64           // counts what became idle
	stats     Stats
	parked    error // of a free that nobody could be told about

	closing  sync.Once
	closeErr error
}

// New makes a pool of dev's pinned memory. It allocates nothing yet. It must be closed before the device.
func New(dev device.Device, cfg Config) (*Pool, error) {
	if dev == nil {
		return nil, fmt.Errorf("transfer: New without a device: %w", ErrInvalid)
	}
	p := &Pool{dev: dev, budget: cfg.MaxCachedBytes, observer: cfg.Observer, events: events{dev: dev}}
	switch {
	case p.budget == 0:
		p.budget = DefaultMaxCachedBytes
	case p.budget < 0:
		p.budget = 0
	}
	if p.observer != nil {
		p.notifier = newNotifier()
	}
	return p, nil
}

// Device is the pool's device.
func (p *Pool) Device() device.Device { return p.dev }

// enter begins a call; the caller leaves p.gate.
func (p *Pool) enter(ctx context.Context, call string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("transfer: %s: %w", call, err)
	}
	if !p.gate.enter() {
		return fmt.Errorf("transfer: %s: the pool of %s is %w", call, p.dev.Name(), ErrClosed)
	}
	return nil
}

// start tells the observer that a driver call begins. The function it returns ends it.
func (p *Pool) start(ctx context.Context, op Op, bytes int64) func(error) {
	if p.observer == nil {
		return func(error) {}
	}
	e := Event{Op: op, Device: p.dev.Name(), Bytes: bytes, Queued: time.Now()}
	_, o := p.observer.Start(ctx, op)
	if o == nil {
		return func(error) {}
	}
	return func(err error) {
		e.Done, e.Err = time.Now(), err
		o.End(e)
	}
}

// Get returns a buffer of bytes bytes of pinned memory, and keeps it out until [Buffer.Release]. Its
// contents are undefined. Cached memory is used if all copies that used it are done, otherwise the driver
// allocates ([RoundSize] bytes); if it can't, the pool gives back what it has cached and asks once more.
//
// 0 bytes give an empty buffer that touches nothing and counts nowhere. Sizes that are negative or over 64
// TiB wrap [ErrRange].
func (p *Pool) Get(ctx context.Context, bytes int64) (*Buffer, error) {
	if bytes < 0 || bytes > maxBytes {
		return nil, fmt.Errorf("transfer: Get of %d bytes: %w: want 0 to %d", bytes, ErrRange, int64(maxBytes))
	}
	if err := p.enter(ctx, "Get"); err != nil {
		return nil, err
	}
	defer p.gate.leave()
	b := &Buffer{pool: p}
	if bytes == 0 {
		return b, nil
	}
	class, size := classOf(bytes)
	s := p.take(class, bytes, b)
	if s == nil {
		var err error
		if s, err = p.grow(ctx, class, size); err != nil {
			return nil, fmt.Errorf("transfer: Get of %d bytes: %w", bytes, err)
		}
		p.adopt(s, bytes, b)
	}
	s.acquire()
	b.slab, b.bytes = s, s.mem[:bytes:bytes]
	return b, nil
}

// take hands out an idle slab, or nil.
func (p *Pool) take(class int, requested int64, b *Buffer) *slab {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle[class]) == 0 {
		p.collect()
	}
	list := p.idle[class]
	if len(list) == 0 {
		return nil
	}
	s := list[len(list)-1]
	list[len(list)-1] = nil
	p.idle[class] = list[:len(list)-1]
	p.stats.Hits++
	down(&p.stats.CachedBytes, s.size())
	p.handOut(s, requested, b)
	return s
}

// grow asks the driver for a slab.
func (p *Pool) grow(ctx context.Context, class int, size int64) (*slab, error) {
	mem, err := p.allocPinned(ctx, size)
	if errors.Is(err, device.ErrOutOfMemory) {
		if flushErr := p.flush(ctx); flushErr != nil {
			return nil, errors.Join(err, flushErr)
		}
		mem, err = p.allocPinned(ctx, size)
	}
	if err != nil {
		return nil, err
	}
	return &slab{mem: mem, class: class}, nil
}

// adopt adds a new slab to the pool, and hands it out.
func (p *Pool) adopt(s *slab, requested int64, b *Buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link(s)
	p.stats.Misses++
	up(&p.stats.Allocations, 1)
	up(&p.stats.AllocatedBytes, s.size())
	p.handOut(s, requested, b)
}

func (p *Pool) handOut(s *slab, requested int64, b *Buffer) {
	s.owner = b
	up(&p.stats.ActiveRequests, 1)
	up(&p.stats.ActiveBytes, s.size())
	up(&p.stats.RequestedBytes, requested)
}

// takeBack undoes handOut.
func (p *Pool) takeBack(s *slab) {
	down(&p.stats.ActiveRequests, 1)
	down(&p.stats.ActiveBytes, s.size())
	down(&p.stats.RequestedBytes, int64(s.owner.Len()))
	up(&p.stats.CachedBytes, s.size())
	s.owner = nil
}

// EmptyCache gives all cached memory back to the driver. It waits for the copies that released buffers wait
// for; when ctx ends first, what those use stays. It returns also the error of an earlier free that
// nobody could be told about.
func (p *Pool) EmptyCache(ctx context.Context) error {
	if err := p.enter(ctx, "EmptyCache"); err != nil {
		return err
	}
	defer p.gate.leave()
	if err := errors.Join(p.flush(ctx), p.unpark()); err != nil {
		return fmt.Errorf("transfer: EmptyCache: %w", err)
	}
	return nil
}

// flush frees what is idle, waits for what is pending, and frees that too.
func (p *Pool) flush(ctx context.Context) error {
	now := p.events.seq.Load()
	for {
		p.mu.Lock()
		p.collect()
		victims := p.drain()
		wait := p.last(now)
		p.mu.Unlock()
		p.freeAll(ctx, victims)
		if wait == nil {
			return nil
		}
		if err := wait.quietWait(ctx); err != nil && ctx.Err() != nil {
			return err
		}
	}
}

func (p *Pool) unpark() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.parked
	p.parked = nil
	return err
}
