package memcache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestPeakMovesBetweenStreams moves bytes between eight streams, so that each has held most of them
// at some time. The peak must be the largest sum, not the sum of each stream's maximum.
func TestPeakMovesBetweenStreams(t *testing.T) {
	dev := newScripted(1 << 40)
	c, err := New(dev, Config{})
	require.NoError(t, err)
	ctx, scope := c.Scope(context.Background(), "all")
	r := rand.New(rand.NewPCG(3, 4))
	var live [8][]Block
	var now, peak, scoped int64
	for range 20_000 {
		i := r.IntN(8)
		if now < 1<<20 && r.IntN(3) > 0 {
			b, err := c.Alloc(ctx, 512*(1+r.Int64N(64)), dev.stream(uint64(i)))
			require.NoError(t, err)
			live[i] = append(live[i], b)
			now += b.Size()
		} else if n := len(live[i]); n > 0 {
			now -= live[i][n-1].Size()
			require.NoError(t, live[i][n-1].Free())
			live[i] = live[i][:n-1]
		}
		peak, scoped = max(peak, now), max(scoped, now)
		require.Equal(t, peak, c.MaxMemoryAllocated())
		require.Equal(t, scoped, scope.Window().Allocated.Peak)
		require.Equal(t, scoped, scope.Own().Peak)
		if r.IntN(2000) == 0 {
			c.ResetPeakStats()
			peak = now
		}
	}
	require.NoError(t, c.check())
}

// TestPeakConcurrentSafe: goroutines allocate together, and free together. The peak of a round is
// their total in the middle of it, in any order.
func TestPeakConcurrentSafe(t *testing.T) {
	const goroutines = 6
	dev := newScripted(1 << 40)
	c, err := New(dev, Config{})
	require.NoError(t, err)
	var want int64
	r := rand.New(rand.NewPCG(5, 6))
	for round := range 100 {
		var sizes [goroutines][]int64
		var sum int64
		for g := range sizes {
			for range r.IntN(30) {
				n := 512 * (1 + r.Int64N(100))
				sizes[g] = append(sizes[g], n)
				sum += n
			}
		}
		want = max(want, sum)
		var blocks [goroutines][]Block
		together(goroutines, func(g int) {
			for _, n := range sizes[g] {
				blocks[g] = append(blocks[g], mustAlloc(t, c, n, dev.stream(uint64(g))))
			}
		})
		require.Equal(t, sum, c.MemoryAllocated())
		require.Equal(t, want, c.MaxMemoryAllocated(), "round %d", round)
		together(goroutines, func(g int) {
			for _, b := range blocks[(g+1)%goroutines] { // another goroutine's
				require.NoError(t, b.Free())
			}
		})
		require.Zero(t, c.MemoryAllocated())
		require.NoError(t, c.check())
	}
	require.Equal(t, want, c.MaxMemoryAllocated())
}

func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// TestStreamsComeAndGoConcurrentSafe retires shards while other goroutines allocate and read
// statistics.
func TestStreamsComeAndGoConcurrentSafe(t *testing.T) {
	dev := newScripted(1 << 40)
	c, err := New(dev, Config{})
	require.NoError(t, err)
	together(4, func(g int) {
		for i := range 300 {
			s := dev.stream(uint64(1000*g + i))
			ctx, scope := c.Scope(context.Background(), "stream")
			a, err := c.Alloc(ctx, 1<<20, s)
			if err != nil {
				t.Error(err)
				return
			}
			_ = a.Free()
			scope.End()
			if own := scope.Own(); own.Peak != 1<<20 || own.Live != 0 {
				t.Errorf("%+v", own)
			}
			s.closed.Store(true)
			c.Stats()
		}
	})
	require.NoError(t, c.check())
	require.LessOrEqual(t, len(c.shards.list()), 8)
	require.EqualValues(t, 1200, c.Stats().Allocation.All.Allocated, "sums of streams that are gone are kept")
}

// BenchmarkStreams runs goroutines with a stream each, on one cache, or on a cache each, which is
// the machine's limit.
func BenchmarkStreams(b *testing.B) {
	for _, apart := range []bool{false, true} {
		for _, n := range []int{1, 2, 4, 8, 16} {
			name := fmt.Sprintf("goroutines/%d", n)
			if apart {
				name = "apart/" + name
			}
			b.Run(name, func(b *testing.B) {
				caches, streams := make([]*Cache, n), make([]device.Stream, n)
				var dev *scripted
				for g := range n {
					if g == 0 || apart {
						var err error
						dev = newScripted(1 << 40)
						caches[g], err = New(dev, Config{})
						require.NoError(b, err)
					} else {
						caches[g] = caches[0]
					}
					streams[g] = dev.stream(uint64(g))
					require.NoError(b, mustAlloc(b, caches[g], 512, streams[g]).Free())
				}
				b.ResetTimer()
				together(n, func(g int) {
					c, s, ctx := caches[g], streams[g], context.Background()
					for range b.N / n {
						block, err := c.Alloc(ctx, 4096, s)
						if err != nil {
							b.Error(err)
							return
						}
						_ = block.Free()
					}
				})
				b.ReportMetric(float64(b.N)/float64(b.Elapsed().Microseconds()), "pairs/µs")
			})
		}
	}
}
