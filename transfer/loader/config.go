package loader

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Config are the options of a [Loader].
type Config struct {
	// Cache allocates the device memory of the ring.
	Cache *memcache.Cache
	// Compute is the stream on which the batches are used.
	Compute device.Stream
	// Copy is the stream of the uploads. If it is nil, the loader makes and closes its own.
	Copy device.Stream
	// Fields are the capacities in bytes of a batch's fields, such as images and labels. Each is at
	// least 1 and at most 64 TiB.
	Fields []int64
	// Ahead is N: how many batches may be ready or uploading while one is used, and how many steps
	// may be in flight. 0 is 2.
	Ahead int
}

const (
	maxAhead = 1 << 10
	maxField = 1 << 46 // bytes, the limit of [transfer.Pool.Get]
)

// check makes all checks of New that need no driver.
func check(p *transfer.Pool, cfg Config) error {
	if p == nil || cfg.Cache == nil {
		return fmt.Errorf("loader: New without a pool or a cache: %w", transfer.ErrInvalid)
	}
	if cfg.Cache.Device().ID() != p.Device().ID() {
		return fmt.Errorf("loader: New with a cache of %s: %w: want one of the pool's device %s",
			cfg.Cache.Device().Name(), transfer.ErrInvalid, p.Device().Name())
	}
	if err := checkStream(p, cfg.Compute); err != nil {
		return err
	}
	if cfg.Copy != nil {
		if err := checkStream(p, cfg.Copy); err != nil {
			return err
		}
	}
	if cfg.Ahead < 0 || cfg.Ahead > maxAhead {
		return fmt.Errorf("loader: New with Ahead %d: %w: want 1 to %d, or 0 for 2", cfg.Ahead, transfer.ErrRange, maxAhead)
	}
	if len(cfg.Fields) == 0 {
		return fmt.Errorf("loader: New without fields: %w: want the capacity of each", transfer.ErrInvalid)
	}
	for i, n := range cfg.Fields {
		if n < 1 || n > maxField {
			return fmt.Errorf("loader: New: field %d of %d bytes: %w: want 1 to %d", i, n, transfer.ErrRange, int64(maxField))
		}
	}
	return nil
}

// checkStream requires a stream of the pool's device.
func checkStream(p *transfer.Pool, s device.Stream) error {
	if s == nil {
		return fmt.Errorf("loader: New without a stream: %w", transfer.ErrInvalid)
	}
	if s.Device().ID() != p.Device().ID() {
		return fmt.Errorf("loader: New on a stream of %s: %w: want a stream of the pool's device %s",
			s.Device().Name(), transfer.ErrInvalid, p.Device().Name())
	}
	return nil
}

// checkContext returns an error if ctx is nil or done.
func checkContext(call string, ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("loader: %s: %w: the context is nil; use context.Background()", call, transfer.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("loader: %s: %w", call, err)
	}
	return nil
}
