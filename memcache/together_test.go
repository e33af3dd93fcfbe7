package memcache

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestScopeOfManyStreams: goroutines, each with its own stream and its own scope inside a shared one, allocate.
func TestScopeOfManyStreamsConcurrentSafe(t *testing.T) {
	c, dev := newCache(t, Config{})
	ctx, scope := c.Scope(t.Context(), "shared")
	const goroutines = 4
	n := max(scaled(4000), 400)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			s := dev.stream(uint64(1 + g))
			ctx, inner := c.Scope(ctx, "of one goroutine") // both are charged
			defer inner.End()
			for range n {
				a, err := c.Alloc(ctx, 512, s)
				b, err2 := c.Alloc(ctx, 1024, s)
				if err := errors.Join(err, err2, a.Free(), b.Free()); err != nil {
					t.Error(err)
				}
				if own := scope.Own(); own.Live < 0 || own.Peak > 1536*goroutines {
					t.Errorf("%+v", own)
				}
			}
		})
	}
	wg.Wait()
	own := scope.Own()
	require.Zero(t, own.Live)
	require.EqualValues(t, goroutines*n*2, own.Allocations)
	require.GreaterOrEqual(t, own.Peak, int64(1536))
	require.EqualValues(t, own.Allocations, scope.Window().Allocations)
	scope.End()
}

// TestEverythingTogether: on a device that is too small goroutines share streams, grow, run out of
// memory, empty the cache, reset, open scopes, register reclaimers, and open and close streams. At
// the end every byte is returned.
func TestEverythingTogetherConcurrentSafe(t *testing.T) {
	for name, config := range map[string]Config{
		"default":           {MaxSplitSizeMB: 32, GarbageCollectionThreshold: 0.6},
		"expandable":        {ExpandableSegments: true},
		"remap":             {ExpandableSegments: true, ExpandableGranuleMB: 2, ExpandableRemap: true},
		"exact, expandable": {ExpandableSegments: true, Exact: true},
		"exact":             {Exact: true},
	} {
		t.Run(name, func(t *testing.T) {
			config.MemoryLimit = 200 * mib
			c, dev := newCache(t, config)
			shared := []*scriptedStream{dev.stream(1), dev.stream(2)}
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(1, uint64(g)))
					var live []Block
					own := dev.stream(uint64(100 + 1000*g))
					for i := range max(scaled(600), 100) {
						ctx, scope := context.Background(), (*Scope)(nil)
						s := shared[i%2]
						switch r.IntN(20) {
						case 0:
							own.closed.Store(true)
							own = dev.stream(own.id + 1)
							s = own
						case 1:
							ctx, scope = c.Scope(ctx, "a request")
						case 2:
							c.ResetAccumulatedStats()
						case 3:
							c.ResetPeakStats()
						case 4:
							if err := c.EmptyCache(ctx); err != nil {
								t.Error(err)
							}
						case 5:
							var mu sync.Mutex
							remove := c.OnPressure(func(context.Context, int64) int64 {
								mu.Lock()
								defer mu.Unlock()
								return 0
							})
							defer remove()
						case 6:
							c.Snapshot()
						case 7:
							s = own
						case 8:
							c.OnPressure(func(context.Context, int64) int64 { return 0 })()
						}
						b, err := c.Alloc(ctx, int64(1)<<r.IntN(26), s)
						switch {
						case err == nil:
							live = append(live, b)
						case !errors.Is(err, ErrOutOfMemory):
							t.Error(err)
						}
						for len(live) > 8 || len(live) > 0 && r.IntN(3) > 0 {
							k := r.IntN(len(live))
							if err := live[k].Free(); err != nil {
								t.Error(err)
							}
							live[k] = live[len(live)-1]
							live = live[:len(live)-1]
						}
						if scope != nil {
							if w := scope.Window(); w.Allocations < 0 {
								t.Errorf("%+v", w)
							}
							scope.End()
						}
					}
					for _, b := range live {
						if err := b.Free(); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			require.NoError(t, c.check())
			require.NoError(t, c.EmptyCache(t.Context()))
			require.Zero(t, c.MemoryReserved())
			require.Zero(t, c.MemoryAllocated())
			st := c.Stats().Since(Stats{})
			for i, q := range st.quantities() {
				require.Equal(t, q.Allocated, q.Freed, "quantity %d", i)
			}
			require.NoError(t, c.Close())
			require.Empty(t, dev.live)
			require.Empty(t, dev.mapped)
			require.Empty(t, dev.reserved)
		})
	}
}
