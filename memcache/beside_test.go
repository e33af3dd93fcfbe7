package memcache

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestGrowthBesideHits: one goroutine grows the segment of a stream from a free block at its end,
// and sometimes fails, while another one allocates and frees in a hole on the same stream.
func TestGrowthBesideHitsConcurrentSafe(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true})
	s := dev.stream(1)
	hole := mustAlloc(t, c, 2*mib, s)
	mustAlloc(t, c, 23*mib, s)
	require.NoError(t, hole.Free())
	var stop atomic.Bool
	var hits atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			b, err := c.Alloc(context.Background(), 2*mib, s)
			if err := errors.Join(err, b.Free()); err != nil {
				t.Error(err)
				stop.Store(true)
			}
			hits.Add(1)
		}
	})
	fails := false
	dev.gate = func(_ context.Context, call string) error {
		if call != "Map" {
			return nil
		}
		// hits while it maps, however busy the machine is
		for before := hits.Load(); hits.Load() < before+20 && !stop.Load(); {
			time.Sleep(20 * time.Microsecond)
		}
		if fails {
			return &device.Error{Op: call, Device: "scripted", Err: device.ErrOutOfMemory}
		}
		return nil
	}
	for round := range 10 {
		fails = round%2 == 0
		b, err := c.Alloc(context.Background(), 30*mib, s)
		require.Equal(t, fails, errors.Is(err, ErrOutOfMemory), "%v", err)
		if !fails {
			require.NoError(t, errors.Join(err, b.Free(), c.EmptyCache(t.Context())))
		}
	}
	stop.Store(true)
	wg.Wait()
	require.NoError(t, c.check())
}

// TestReclaimersComeAndGo while requests fail and call them. The short form has fewer requests, but
// still hundreds of reclaimers.
func TestReclaimersComeAndGoConcurrentSafe(t *testing.T) {
	c, s, _ := pressed(t)
	c.OnPressure(func(context.Context, int64) int64 { time.Sleep(10 * time.Microsecond); return 0 })
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			c.OnPressure(func(context.Context, int64) int64 { return 0 })()
		}
	})
	requests := 500
	if testing.Short() {
		requests = 60
	}
	for range requests {
		_, err := c.Alloc(context.Background(), 16*mib, s)
		require.ErrorIs(t, err, ErrOutOfMemory)
	}
	stop.Store(true)
	wg.Wait()
	require.Len(t, c.reclaimers.list, 1)
}
