package transfer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer/internal/callgate"
)

// The limits of a Config without its own.
const (
	DefaultMaxCachedBytes   = 256 << 20
	DefaultMaxCachedBuffers = 1024
)

// Config are the options of a [Pool].
type Config struct {
	// MaxCachedBytes is how much pinned memory the pool keeps for later Gets. What is over it goes back to
	// the driver, about the least recently used first. 0 is [DefaultMaxCachedBytes]; negative keeps none.
	MaxCachedBytes int64
	// MaxCachedBuffers is how many allocations of one size class it keeps. What is over it goes back to the driver at
	// once. 0 is [DefaultMaxCachedBuffers]; negative keeps none.
	MaxCachedBuffers int
	// MaxBytes is how much pinned memory the driver may hold for the pool at any moment: what is out, cached, being allocated,
	// being freed, and what it refused to free; but not what is registered. A Get that needs more waits for what is being freed,
	// gives back what is cached, and fails with a [LimitError] if that is not enough. 0 is no limit.
	MaxBytes int64
	// Observer is told of copies and driver calls. nil: nobody is, and it costs nothing.
	Observer Observer
}

// Pool is a cache of pinned host memory, and the copies between it and the blocks of a memcache.Cache on
// the same device.
//
// All methods may be called from any goroutine. A Get that finds cached memory, and a Release, take the lock of
// one of several shards, which goroutines on different processors do not share.
type Pool struct {
	dev         device.Device
	budget      int64
	maxPerClass int32
	limit       int64
	observer    Observer
	notifier    *notifier // nil without an observer
	events      events
	timed       events // for observers
	gate        callgate.Gate
	closed      atomic.Bool
	copied      [copyOps]struct{ copies, bytes atomic.Int64 }

	shards    []*shard
	hints     sync.Pool // of *shard: which one a processor uses
	nextShard atomic.Uint32

	lockingAll   atomic.Bool
	lockAllWaits atomic.Int64 // for who locked all
	rebalanceDue atomic.Bool  // somebody left work to rebalance

	// Guarded by the locks of all shards.
	byteAllowance   int64 // of the budget, not given to a shard
	bufferAllowance [classes]int32
	peaks           [gauges]int64
	lostRaces       int // Gets in a row, each within a moment, that others were faster than
	lastLostRace    time.Time

	allocations, allocatedBytes memcache.Stat // of active and cached slabs
	evicted                     []*slab       // evicted, for the next rebalance to free

	mu                  sync.Mutex
	first               *slab         // all of the pool's slabs
	registered          memcache.Stat // bytes
	held                memcache.Stat // bytes that the driver has allocated and not freed
	allocating          int64         // bytes that are being allocated
	freeing             int64         // bytes of held that are being freed
	freed               chan struct{} // closed when the driver has freed something; nil if nobody waits
	misses              int64
	allocTime, freeTime DurationStat
	parked              error // of a free that nobody could be told about

	unverified atomic.Int64 // operations until the next audit, in builds that have them

	closing  sync.Once
	closeErr error
}

// New makes a pool of dev's pinned memory. It allocates nothing yet. It must be closed before the device.
func New(dev device.Device, cfg Config) (*Pool, error) {
	if dev == nil {
		return nil, fmt.Errorf("transfer: New without a device: %w", ErrInvalid)
	}
	if cfg.MaxBytes < 0 {
		return nil, fmt.Errorf("transfer: New with MaxBytes %d: %w: want 1 or more, or 0 for no limit", cfg.MaxBytes, ErrRange)
	}
	return newPool(dev, cfg, min(2*runtime.GOMAXPROCS(0), maxShards)), nil
}

func newPool(dev device.Device, cfg Config, shards int) *Pool {
	p := &Pool{
		dev: dev, observer: cfg.Observer, events: events{dev: dev}, timed: events{dev: dev, timed: true}, limit: cfg.MaxBytes,
		budget:      orDefault(cfg.MaxCachedBytes, DefaultMaxCachedBytes),
		maxPerClass: int32(min(orDefault(int64(cfg.MaxCachedBuffers), DefaultMaxCachedBuffers), 1<<30)),
	}
	p.byteAllowance = p.budget
	for i := range p.bufferAllowance {
		p.bufferAllowance[i] = p.maxPerClass
	}
	for range shards {
		p.shards = append(p.shards, new(shard))
	}
	p.hints.New = func() any { return p.shards[p.nextShard.Add(1)%uint32(len(p.shards))] }
	if p.observer != nil {
		p.notifier = newNotifier()
	}
	return p
}

// orDefault is n, the default for 0, and 0 for less.
func orDefault(n, normal int64) int64 {
	if n == 0 {
		return normal
	}
	return max(n, 0)
}

// Device is the pool's device.
func (p *Pool) Device() device.Device { return p.dev }

// Observer is that of the pool's Config, or nil: for what uses the pool and has operations of its own to tell of, as a loader.
func (p *Pool) Observer() Observer { return p.observer }

// enter begins a call that reaches the driver; the caller leaves p.gate.
func (p *Pool) enter(ctx context.Context, call string) error {
	if err := checkContext(call, ctx); err != nil {
		return err
	}
	if !p.gate.Enter() {
		return p.closedError(call)
	}
	return nil
}

func (p *Pool) closedError(call string) error {
	return fmt.Errorf("transfer: %s: the pool of %s is %w", call, p.dev.Name(), ErrClosed)
}

// start tells the observer that a driver call begins. The function it returns ends it.
func (p *Pool) start(ctx context.Context, op Op, bytes int64) func(error) {
	if p.observer == nil {
		return func(error) {}
	}
	e := OpInfo{Op: op, Device: p.dev.Name(), Bytes: bytes, Queued: time.Now()}
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
// allocates ([RoundSize] bytes); if it can't, or Config.MaxBytes forbids it, the pool gives back what it has cached,
// after the copies that still use that, and tries once more. Where goroutines on several processors take their memory from
// each other all the time, it allocates up to one buffer more for each, if those are small beside the budget.
//
// 0 bytes give the empty [Buffer], which touches nothing and counts nowhere. Sizes that are negative or over 64
// TiB wrap [ErrRange].
func (p *Pool) Get(ctx context.Context, bytes int64) (Buffer, error) {
	if invariants.Enabled {
		defer p.verify()
	}
	if bytes < 0 || bytes > maxBytes {
		return Buffer{}, fmt.Errorf("transfer: Get of %d bytes: %w: want 0 to %d", bytes, ErrRange, int64(maxBytes))
	}
	if err := checkContext("Get", ctx); err != nil {
		return Buffer{}, err
	}
	if bytes == 0 {
		if p.closed.Load() {
			return Buffer{}, p.closedError("Get")
		}
		return Buffer{}, nil
	}
	class, size := classOf(bytes)
	sh := p.lockShard()
	s, unbalanced := sh.take(class, bytes)
	sh.mu.Unlock()
	passedOver := false
	if s == nil && !unbalanced {
		s, unbalanced, passedOver = p.takeElsewhere(class, bytes)
	}
	if s == nil || unbalanced {
		var err error
		if s, err = p.getSlow(ctx, sh, s, unbalanced, passedOver, class, size, bytes); err != nil {
			return Buffer{}, err
		}
	}
	return s.handOut(bytes), nil
}

// getSlow finds memory in other shards, or asks the driver, unless s has been found. unbalanced says that it must rebalance, passedOver
// that a locked shard was passed over.
func (p *Pool) getSlow(ctx context.Context, sh *shard, s *slab, unbalanced, passedOver bool, class int, size, bytes int64) (*slab, error) {
	if !p.gate.Enter() {
		if s != nil {
			return s, nil // the pool closes, and counts it as out
		}
		return nil, p.closedError("Get")
	}
	defer p.gate.Leave()
	extra := false
	if s == nil && !unbalanced {
		s, extra = p.steal(sh, class, size, bytes, passedOver)
	}
	if extra {
		if more, err := p.allocSlab(ctx, class, size, false); err == nil {
			p.addSlab(sh, more, bytes)
			return more, nil
		}
	}
	if s == nil || unbalanced {
		p.rebalance(ctx)
	}
	if s == nil {
		s, _ = p.steal(sh, class, size, bytes, false)
	}
	if s != nil {
		return s, nil
	}
	s, err := p.grow(ctx, class, size)
	if err != nil {
		return nil, fmt.Errorf("transfer: Get of %d bytes: %w", bytes, err)
	}
	p.addSlab(sh, s, bytes)
	return s, nil
}

// grow asks the driver for a slab.
func (p *Pool) grow(ctx context.Context, class int, size int64) (*slab, error) {
	s, err := p.allocSlab(ctx, class, size, true)
	if errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, ErrLimit) {
		if flushErr := p.flush(ctx); flushErr != nil {
			return nil, errors.Join(err, flushErr)
		}
		s, err = p.allocSlab(ctx, class, size, true)
	}
	return s, err
}

// EmptyCache gives all cached memory back to the driver. It waits for the copies that released buffers wait
// for; when ctx ends first, what those use stays. It returns also the error of an earlier free that
// nobody could be told about.
func (p *Pool) EmptyCache(ctx context.Context) error {
	if invariants.Enabled {
		defer p.verify()
	}
	if err := p.enter(ctx, "EmptyCache"); err != nil {
		return err
	}
	defer p.gate.Leave()
	if err := errors.Join(p.flush(ctx), p.unpark()); err != nil {
		return fmt.Errorf("transfer: EmptyCache: %w", err)
	}
	return nil
}

// flush frees what is idle, waits for what is pending, and frees that too.
func (p *Pool) flush(ctx context.Context) error {
	now := p.events.seq.Load()
	for {
		victims, wait := p.drain(now)
		p.freeAll(ctx, victims)
		if wait == nil {
			return nil
		}
		if err := wait.quietWait(ctx); err != nil && ctx.Err() != nil {
			return err
		}
	}
}

// park keeps an error that nobody can be told about now, unless there is one. The pool is locked.
func (p *Pool) park(err error) {
	if p.parked == nil {
		p.parked = err
	}
}

func (p *Pool) unpark() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.parked
	p.parked = nil
	return err
}
