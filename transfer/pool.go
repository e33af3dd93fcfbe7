package transfer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer/internal/callgate"
)

// Pool is a cache of pinned host memory. Its methods queue the copies between that memory and the
// blocks of a memcache.Cache on the same device.
//
// All methods may be called from any goroutine. A Get that finds cached memory, and a Release, take
// the lock of one shard; goroutines on different processors use different shards.
type Pool struct {
	dev      device.Device
	pinned   pinned // what the driver holds
	cache    cache  // idle memory, and memory that becomes idle after its copies
	observer Observer
	notifier *notifier     // nil without an observer
	recorded atomic.Uint64 // completions so far: the seq of the last one
	gate     callgate.Gate
	closed   atomic.Bool
	copied   [copyOps]struct{ copies, bytes atomic.Int64 }
	metered  atomic.Bool // there is, or was, a meter

	droppedBatches atomic.Int64

	unverified atomic.Int64 // operations until the next audit, in builds with the tag invariants

	closing  sync.Once
	closeErr error
}

// Device returns the pool's device.
func (p *Pool) Device() device.Device { return p.dev }

// MaxBytes returns Config.MaxBytes: how many bytes of pinned memory the driver may hold for the
// pool; 0 is no limit.
func (p *Pool) MaxBytes() int64 { return p.pinned.limit }

// Observer returns Config.Observer, or nil. It is for users of the pool that report operations of
// their own, such as a loader.
func (p *Pool) Observer() Observer { return p.observer }

// enter begins a call that reaches the driver. Without an error the caller must leave p.gate.
func (p *Pool) enter(ctx context.Context, call string) error {
	if err := checkContext(call, ctx); err != nil {
		return err
	}
	if !p.gate.Enter() {
		return p.closedError(call)
	}
	return nil
}

// closedError is the error of a call after Close.
func (p *Pool) closedError(call string) error {
	return fmt.Errorf("transfer: %s: the pool of %s is %w", call, p.dev.Name(), ErrClosed)
}
