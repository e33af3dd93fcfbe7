package transfer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/transfer/internal/callgate"
)

// Pool is a cache of pinned host memory, and the copies between it and the blocks of a
// memcache.Cache on the same device.
//
// All methods may be called from any goroutine. A Get that finds cached memory, and a Release, take
// the lock of one of several shards, which goroutines on different processors do not share.
type Pool struct {
	dev      device.Device
	pinned   pinned // what the driver holds
	cache    cache  // what is idle, or will be
	observer Observer
	notifier *notifier     // nil without an observer
	recorded atomic.Uint64 // completions: each has the number of its record
	gate     callgate.Gate
	closed   atomic.Bool
	copied   [copyOps]struct{ copies, bytes atomic.Int64 }
	metered  atomic.Bool // there is, or was, a meter

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
	return newPool(dev, cfg, min(runtime.GOMAXPROCS(0), maxShards)), nil
}

// newPool is New with checked options.
func newPool(dev device.Device, cfg Config, shards int) *Pool {
	p := &Pool{dev: dev, observer: cfg.Observer}
	p.pinned = pinned{dev: dev, observer: cfg.Observer, limit: cfg.MaxBytes}
	p.cache.pinned = &p.pinned
	p.cache.budget = orDefault(cfg.MaxCachedBytes, DefaultMaxCachedBytes)
	p.cache.perClass = orDefault(int64(cfg.MaxCachedBuffers), DefaultMaxCachedBuffers)
	p.cache.init(shards)
	if p.observer != nil {
		p.notifier = newNotifier()
	}
	return p
}

// Device is the pool's device.
func (p *Pool) Device() device.Device { return p.dev }

// MaxBytes is that of the pool's Config: how much pinned memory the driver may hold for it; 0: no limit.
func (p *Pool) MaxBytes() int64 { return p.pinned.limit }

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

// EmptyCache gives all cached memory back to the driver. It waits for the copies that released
// buffers wait for; when ctx ends first, what those use stays. It returns also the error of an
// earlier free that nobody could be told about.
func (p *Pool) EmptyCache(ctx context.Context) error {
	if invariants.Enabled {
		defer p.verify()
	}
	if err := p.enter(ctx, "EmptyCache"); err != nil {
		return err
	}
	defer p.gate.Leave()
	if err := errors.Join(p.flush(ctx), p.pinned.unpark()); err != nil {
		return fmt.Errorf("transfer: EmptyCache: %w", err)
	}
	return nil
}

// flush gives the driver all that was cached or pending when it began.
func (p *Pool) flush(ctx context.Context) error {
	// Completions are numbered as they are recorded: what has a higher number was queued after this call began.
	return p.cache.flush(ctx, p.recorded.Load())
}
