package memcache

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScopes(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	old := mustAlloc(t, c, 4096, s)
	alloc := func(ctx context.Context, n int64) Block {
		b, err := c.Alloc(ctx, n, s)
		require.NoError(t, err)
		return b
	}
	ctx, outer := c.Scope(context.Background(), "outer")
	require.Equal(t, "outer", outer.Name())
	a := alloc(ctx, 1000)
	inner, in := c.Scope(ctx, "inner")
	b := alloc(inner, 2000)
	require.NoError(t, old.Free()) // older memory: in the window, not in the own
	d := alloc(context.Background(), 512)
	require.Equal(t, Own{Live: 1024 + 2048, Peak: 1024 + 2048, Allocations: 2}, outer.Own())
	require.Equal(t, Own{Live: 2048, Peak: 2048, Allocations: 1}, in.Own())
	w := in.Window()
	require.Equal(t, Level{Start: 5120, Current: 3584, Peak: 7168}, w.Allocated)
	require.Equal(t, Level{Start: 5096, Current: 3512, Peak: 7096}, w.Requested)
	require.Equal(t, Level{Start: 2 << 20, Current: 2 << 20, Peak: 2 << 20}, w.Reserved)
	require.EqualValues(t, 2, w.Allocations)
	require.EqualValues(t, 2, w.Hits)
	in.End()
	in.End()
	require.NoError(t, a.Free())
	require.Equal(t, w, in.Window(), "the window ended")
	late := alloc(inner, 512)
	require.Equal(t, Own{Live: 2048, Peak: 2048, Allocations: 1}, in.Own(), "an ended scope does not grow")
	require.Equal(t, Own{Live: 2048 + 512, Peak: 3072, Allocations: 3}, outer.Own())
	require.NoError(t, b.Free())
	require.Zero(t, in.Own().Live, "an ended scope shrinks")
	outer.End()
	require.NoError(t, late.Free())
	require.NoError(t, d.Free())
	require.Zero(t, outer.Own().Live)
	require.Empty(t, c.ledger.openScopes)
	require.EqualValues(t, 7168, c.MaxMemoryAllocated(), "scopes don't touch the global peak")
}

func TestScopesNestAndBelongToTheirCache(t *testing.T) {
	c1, dev1 := newCache(t, Config{})
	c2, dev2 := newCache(t, Config{})
	ctx := context.Background()
	var scopes []*Scope
	for i := range 10 {
		var s *Scope
		ctx, s = c1.Scope(ctx, fmt.Sprint(i))
		scopes = append(scopes, s)
		ctx, s = c2.Scope(ctx, fmt.Sprint(i))
		scopes = append(scopes, s)
	}
	b1, err := c1.Alloc(ctx, 512, dev1.stream(1))
	require.NoError(t, err)
	b2, err := c2.Alloc(ctx, 1024, dev2.stream(1))
	require.NoError(t, err)
	for i, s := range scopes {
		require.EqualValues(t, 512*(1+i%2), s.Own().Live)
	}
	// A middle scope ends between the allocation and the free.
	scopes[10].End()
	require.NoError(t, b1.Free())
	require.NoError(t, b2.Free())
	for _, s := range scopes {
		require.Zero(t, s.Own().Live)
	}
}

func TestScopesConcurrentSafe(t *testing.T) {
	c, dev := newCache(t, Config{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s := dev.stream(uint64(i))
			for range 200 {
				ctx, scope := c.Scope(context.Background(), "step")
				a, _ := c.Alloc(ctx, 512, s)
				b, _ := c.Alloc(ctx, 1024, s)
				_ = a.Free()
				_ = b.Free()
				scope.End()
				if own := scope.Own(); own != (Own{Peak: 1536, Allocations: 2}) {
					t.Errorf("%+v", own)
				}
				if w := scope.Window(); w.Allocated.Peak < 1536 {
					t.Errorf("%+v", w)
				}
				c.ResetPeakStats()
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.check())
}

func TestNilContext(t *testing.T) {
	c, dev := newCache(t, Config{})
	pool, err := c.NewPool(PoolOptions{})
	require.NoError(t, err)
	var none context.Context
	scoped, scope := c.Scope(none, "of nothing")
	defer scope.End()
	for _, ctx := range []context.Context{none, scoped, pool.Context(none), c.WithoutPool(none)} {
		_, err := c.Alloc(ctx, 512, dev.stream(1))
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "context.Background()")
		require.ErrorIs(t, c.EmptyCache(ctx), ErrInvalid)
	}
	require.NoError(t, mustAlloc(t, c, 512, dev.stream(1)).FreeContext(none))
	require.NoError(t, pool.Release())
}

// TestWindowCountsWhatStatsCount, also across resets of the statistics.
func TestWindowCountsWhatStatsCount(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 8 << 20})
	stream := dev.stream(1)
	work := func(n int) {
		for range n {
			b, err := c.Alloc(t.Context(), 1<<20, stream)
			require.NoError(t, err)
			require.NoError(t, b.Free())
			_, err = c.Alloc(t.Context(), 100<<20, stream)
			require.ErrorIs(t, err, ErrOutOfMemory)
		}
	}
	work(2)
	c.ResetAccumulatedStats()
	work(3)
	before := c.Stats()
	_, s := c.Scope(t.Context(), "counts")
	work(4)
	c.ResetAccumulatedStats()
	work(5)
	got, want := s.Window(), c.Stats().Since(before)
	require.Equal(t, []int64{want.Allocation.All.Allocated, want.Allocation.All.Freed, want.Hits, want.Misses, want.NumDeviceAlloc, want.NumAllocRetries, want.NumOOMs},
		[]int64{got.Allocations, got.Frees, got.Hits, got.Misses, got.DriverAllocs, got.Retries, got.OutOfMemory})
	require.Equal(t, []int64{9, 9}, []int64{got.Frees, got.OutOfMemory})
	require.Positive(t, got.Retries)
	s.End()
	work(1)
	require.Equal(t, got, s.Window())
}

// TestEndWindow returns the owners of a peak above the given one, from the moment of the end.
func TestEndWindow(t *testing.T) {
	c, dev := newCache(t, Config{})
	stream := dev.stream(1)
	for _, tt := range []struct {
		above int64
		tells bool
	}{{-1, true}, {2<<20 - 1, true}, {2 << 20, false}, {math.MaxInt64, false}} {
		ctx, s := c.Scope(WithModule(t.Context(), "m"), "ends")
		b, err := c.Alloc(ctx, 2<<20, stream)
		require.NoError(t, err)
		require.NoError(t, b.Free())
		w, holders := s.EndWindow(tt.above)
		require.Equal(t, int64(2<<20), w.Allocated.Peak)
		require.Equal(t, s.Window(), w)
		p := holders.Profile()
		require.Equal(t, tt.tells, len(p.Holdings) == 1 && p.Holdings[0].Module == "m" && p.Allocated == 2<<20, tt.above)
		_, holders = s.EndWindow(-1)
		require.Empty(t, holders.Profile().Holdings, "it had ended")
	}
}
