package transfer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
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

	droppedBatches atomic.Int64

	unverified atomic.Int64 // operations until the next audit, in builds that have them

	closing  sync.Once
	closeErr error
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
