package transfer

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer/internal/callgate"
)

// Pool is a cache of pinned host memory, and the copies between it and the blocks of a
// memcache.Cache on the same device.
//
// All methods may be called from any goroutine. A Get that finds cached memory, and a Release, take
// the lock of one of several shards, which goroutines on different processors do not share.
type Pool struct {
	dev         device.Device
	budget      int64 // Config.MaxCachedBytes
	maxPerClass int32 // Config.MaxCachedBuffers
	limit       int64 // Config.MaxBytes; 0: none
	observer    Observer
	notifier    *notifier     // nil without an observer
	recorded    atomic.Uint64 // completions: each has the number of its record
	gate        callgate.Gate
	closed      atomic.Bool
	copied      [copyOps]struct{ copies, bytes atomic.Int64 }
	metered     atomic.Bool // there is, or was, a meter

	shards    []*shard      // as many as twice the processors, 64 at most
	hints     sync.Pool     // of *shard: which one a processor uses
	nextShard atomic.Uint32 // of the next processor that has no hint

	lockingAll   atomic.Bool
	lockAllWaits atomic.Int64 // for who locked all
	rebalanceDue atomic.Bool  // somebody left work to rebalance

	// Guarded by the locks of all shards.
	byteAllowance   int64          // of the budget, not given to a shard
	bufferAllowance [classes]int32 // of maxPerClass, not given to a shard
	peaks           [gauges]int64  // the sums of the shards' quotas
	lostRaces       int            // Gets in a row, each within a moment, that others were faster than
	lastLostRace    time.Time

	allocations, allocatedBytes memcache.Stat // of active and cached slabs
	evicted                     []*slab       // evicted, for the next rebalance to free

	// Guarded by mu, which is taken after the shards' and never while the driver is asked.
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

// New makes a pool of dev's pinned memory. It allocates nothing yet. It must be closed before the
// device.
func New(dev device.Device, cfg Config) (*Pool, error) {
	if dev == nil {
		return nil, fmt.Errorf("transfer: New without a device: %w", ErrInvalid)
	}
	if cfg.MaxBytes < 0 {
		return nil, fmt.Errorf("transfer: New with MaxBytes %d: %w: want 1 or more, or 0 for no limit", cfg.MaxBytes, ErrRange)
	}
	return newPool(dev, cfg, min(2*runtime.GOMAXPROCS(0), maxShards)), nil
}

// newPool is New with checked options.
func newPool(dev device.Device, cfg Config, shards int) *Pool {
	p := &Pool{
		dev: dev, observer: cfg.Observer, limit: cfg.MaxBytes,
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

// Device is the pool's device.
func (p *Pool) Device() device.Device { return p.dev }

// MaxBytes is that of the pool's Config: how much pinned memory the driver may hold for it; 0: no limit.
func (p *Pool) MaxBytes() int64 { return p.limit }

// Observer is that of the pool's Config, or nil: for what uses the pool and has operations of its
// own to tell of, as a loader.
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

// closedError is the error of a call that Close came before.
func (p *Pool) closedError(call string) error {
	return fmt.Errorf("transfer: %s: the pool of %s is %w", call, p.dev.Name(), ErrClosed)
}

// start tells the observer that a driver call begins, without a lock. The function it returns ends it.
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

// park keeps an error that nobody can be told about now, unless there is one. The pool is locked.
func (p *Pool) park(err error) {
	if p.parked == nil {
		p.parked = err
	}
}

// unpark returns the parked error, once.
func (p *Pool) unpark() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.parked
	p.parked = nil
	return err
}
