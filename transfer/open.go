package transfer

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/transfer/internal/processor"
)

// New returns a pool of dev's pinned memory. It allocates no pinned memory yet. The caller must
// close the pool before the device.
func New(dev device.Device, cfg Config) (*Pool, error) {
	if dev == nil {
		return nil, fmt.Errorf("transfer: New without a device: %w", ErrInvalid)
	}
	if cfg.MaxBytes < 0 {
		return nil, fmt.Errorf("transfer: New with MaxBytes %d: %w: want 1 or more, or 0 for no limit", cfg.MaxBytes, ErrRange)
	}
	return newPool(dev, cfg, min(runtime.GOMAXPROCS(0), maxShards)), nil
}

// newPool is New with a checked Config.
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

// EmptyCache frees all cached memory. It waits for the copies of released buffers; if ctx ends
// first, the memory of the pending ones stays. It also returns the error of an earlier free that no
// call could return.
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

// flush frees the memory that was cached or pending when it began.
func (p *Pool) flush(ctx context.Context) error {
	// Completions are numbered when they are recorded, so higher numbers belong to work queued
	// after this call began.
	return p.cache.flush(ctx, p.recorded.Load())
}

func (c *cache) init(shards int) {
	c.ledger = newLedger(c.budget, c.perClass)
	for range shards {
		c.shards = append(c.shards, &shard{Shard: c.ledger.Join(), cache: c})
	}
	c.processor = processor.Number
}
