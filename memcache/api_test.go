package memcache_test

import (
	"context"
	"errors"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// The following functions are compiled and not run. They record how other parts of the project,
// some of them planned, call this package, so that its API need not change for them.

// The context selects a pool, as it selects a scope. Blocks return to their pool by themselves.
func inPool(ctx context.Context, c *memcache.Cache, s device.Stream) error {
	pool, err := c.NewPool(memcache.PoolOptions{UseOnOOM: true, NoSplit: true})
	if err != nil {
		return err
	}
	a, errA := c.Alloc(pool.Context(ctx), 1<<20, s)
	b, errB := c.Alloc(c.WithoutPool(pool.Context(ctx)), 1<<20, s)
	return errors.Join(errA, errB, b.Free(), pool.Release(), a.Free(), pool.EmptyCache(ctx))
}

// A capture allocates from its pool on the captured stream, and frees as usual. The cache defers
// RecordStream and Free where necessary until the capture ends.
func capture(ctx context.Context, c *memcache.Cache, captured, other device.Stream, begin, end func(device.Stream) error, pool *memcache.Pool) error {
	if err := begin(captured); err != nil {
		return err
	}
	b, err := c.Alloc(pool.Context(ctx), 512, captured)
	if err != nil {
		return err
	}
	return errors.Join(b.RecordStream(other), b.Free(), end(captured))
}

// A request waits for memory that others will free by its context's deadline and a reclaimer.
func waitForMemory(c *memcache.Cache, s device.Stream, freed <-chan int64) (memcache.Block, error) {
	remove := c.OnPressure(func(ctx context.Context, need int64) int64 {
		select {
		case n := <-freed:
			return n
		case <-ctx.Done():
			return 0
		}
	})
	defer remove()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	b, err := c.Alloc(ctx, 1<<30, s)
	var oom *memcache.OutOfMemoryError
	if errors.As(err, &oom) {
		_ = oom.Requested > oom.Free
	}
	return b, err
}

// Two devices are two caches; one context carries the scopes of both.
func twoDevices(ctx context.Context, c0, c1 *memcache.Cache, s0, s1 device.Stream) (int64, error) {
	ctx, step0 := c0.Scope(ctx, "step")
	defer step0.End()
	ctx, step1 := c1.Scope(ctx, "step")
	defer step1.End()
	b0, err0 := c0.Alloc(ctx, 512, s0)
	b1, err1 := c1.Alloc(ctx, 512, s1)
	return step0.Own().Peak + step1.Own().Peak, errors.Join(err0, err1, b0.FreeContext(ctx), b1.FreeContext(ctx))
}

// The gorgonia engine stores blocks by address: Block is comparable and returns its address and
// size without a lock. The engine uses a context of its own.
type engine struct {
	cache  *memcache.Cache
	stream device.Stream
	blocks map[device.Ptr]memcache.Block
}

func (e *engine) alloc(bytes int64) (uintptr, error) {
	b, err := e.cache.Alloc(context.Background(), bytes, e.stream)
	if err != nil {
		return 0, err
	}
	e.blocks[b.Ptr()] = b
	return uintptr(b.Ptr()), nil
}

func (e *engine) free(p uintptr) error {
	b := e.blocks[device.Ptr(p)]
	delete(e.blocks, device.Ptr(p))
	return b.Free()
}

var _ = []any{inPool, capture, waitForMemory, twoDevices, (*engine).alloc, (*engine).free}
