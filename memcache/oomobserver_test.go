package memcache

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
)

// TestOnOutOfMemory: only final failures are reported, once, with the request's error, in order,
// until the registration ends.
func TestOnOutOfMemory(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 100 * mib})
	s := dev.stream(1)
	type key struct{}
	ctx := context.WithValue(WithModule(t.Context(), "attention"), key{}, 7)
	var told []*OutOfMemoryError
	var order []string
	removeFirst := c.OnOutOfMemory(func(ctx context.Context, e *OutOfMemoryError) {
		require.Equal(t, 7, ctx.Value(key{}))
		told = append(told, e)
		order = append(order, "first")
	})
	var removeSecond func()
	removeSecond = c.OnOutOfMemory(func(_ context.Context, e *OutOfMemoryError) {
		order = append(order, "second")
		e.Requested, e.Holders[0].Name = -1, "changed" // a copy
		removeSecond()
	})
	held := allocIn(t, ctx, c, 60*mib, s)
	free := mustAlloc(t, c, 30*mib, s)
	require.NoError(t, free.Free())
	mustAlloc(t, c, 40*mib, dev.stream(2)) // after a flush
	require.EqualValues(t, 1, c.Stats().NumAllocRetries)
	require.Empty(t, order)
	asked := 0
	stop := c.OnPressure(func(context.Context, int64) int64 {
		require.Empty(t, told, "reclaimers come first")
		asked++
		return 0
	})
	_, err := c.Alloc(ctx, 50*mib, s)
	var oom *OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.Equal(t, 1, asked)
	stop()
	require.Equal(t, []string{"first", "second"}, order)
	require.Equal(t, []*OutOfMemoryError{oom}, told)
	require.NotSame(t, oom, told[0])
	require.EqualValues(t, 50*mib, oom.Requested)
	require.Equal(t, "attention (other)", oom.Holders[0].Name)
	_, err = c.Alloc(ctx, 50*mib, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Equal(t, []string{"first", "second", "first"}, order)
	removeFirst()
	removeFirst()
	_, err = c.Alloc(ctx, 50*mib, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	_, err = c.Alloc(ctx, 1<<60, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Len(t, order, 3)
	require.NoError(t, held.Free())
}

// TestOnOutOfMemoryUsesTheCache: no lock is held during a call of the function, and its own failed
// request does not call it again.
func TestOnOutOfMemoryUsesTheCache(t *testing.T) {
	for _, config := range []Config{{MemoryLimit: 100 * mib}, {MemoryLimit: 100 * mib, Exact: true}, {MemoryLimit: 100 * mib, NoCaching: true}, {MemoryLimit: 100 * mib, ExpandableSegments: true}} {
		c, dev := newCache(t, config)
		s := dev.stream(1)
		calls := 0
		defer c.OnOutOfMemory(func(ctx context.Context, _ *OutOfMemoryError) {
			calls++
			require.Equal(t, int64(1), c.Stats().NumOOMs)
			c.Snapshot()
			require.NoError(t, c.EmptyCache(ctx))
			require.NoError(t, mustAlloc(t, c, 100, s).Free())
			_, err := c.Alloc(ctx, 200*mib, s)
			require.ErrorIs(t, err, ErrOutOfMemory)
		})()
		_, err := c.Alloc(t.Context(), 300*mib, s)
		require.ErrorIs(t, err, ErrOutOfMemory)
		require.Equal(t, 1, calls)
		require.EqualValues(t, 2, c.Stats().NumOOMs)
	}
}

// TestOnOutOfMemoryAfterAWait: a request that waits for memory is reported when its wait ends.
func TestOnOutOfMemoryAfterAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, dev := newCache(t, Config{MemoryLimit: 100 * mib})
		allocIn(t, c.Wait(t.Context()), c, 90*mib, dev.stream(1))
		var waited []time.Duration
		c.OnOutOfMemory(func(_ context.Context, e *OutOfMemoryError) { waited = append(waited, e.Waited) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := c.Alloc(c.Wait(ctx), 90*mib, dev.stream(2))
		require.ErrorIs(t, err, ErrOutOfMemory)
		require.Equal(t, []time.Duration{time.Minute}, waited)
	})
}

// TestOnOutOfMemoryConcurrentSafe: each failure of many goroutines is reported once, while
// registrations come and go.
func TestOnOutOfMemoryConcurrentSafe(t *testing.T) {
	dev, err := null.New(null.Config{Capacity: 1 << 30})
	require.NoError(t, err)
	c, err := New(dev, Config{MemoryLimit: 64 * mib})
	require.NoError(t, err)
	var told, failed atomic.Int64
	c.OnOutOfMemory(func(context.Context, *OutOfMemoryError) { told.Add(1) })
	var all sync.WaitGroup
	for i := range 4 {
		s, err := dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 3))
			for range 300 {
				remove := c.OnOutOfMemory(func(context.Context, *OutOfMemoryError) {})
				// those above 64 MiB fail however the goroutines run
				b, err := c.Alloc(t.Context(), r.Int64N(80*mib), s)
				if err != nil {
					assert.ErrorIs(t, err, ErrOutOfMemory)
					failed.Add(1)
				}
				remove()
				assert.NoError(t, b.Free())
			}
		})
	}
	all.Wait()
	require.Positive(t, failed.Load())
	require.Equal(t, failed.Load(), told.Load())
	require.Equal(t, failed.Load(), c.Stats().NumOOMs)
	require.NoError(t, errors.Join(c.Close(), dev.Close()))
}
