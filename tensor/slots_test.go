package tensor

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestResetReusesSlots: from the third round on, new tensors have the slots of the round before,
// and no others, except for live tensors.
func TestResetReusesSlots(t *testing.T) {
	r := newRig(t, 64<<20)
	ctx, life := WithLifetime(r.ctx)
	life.Group(0)
	mk := func(n int) (made []*Tensor) {
		for i := range n {
			x, err := FromSlice(ctx, r.Runtime, []float32{float32(i)}, 1)
			require.NoError(t, err)
			made = append(made, x)
		}
		return made
	}
	mk(40)
	require.NoError(t, life.Reset(r.ctx))
	before := mk(40)
	require.NoError(t, life.Reset(r.ctx))
	for _, x := range before {
		assert.True(t, x.Released(), "until its place is used again")
		require.NoError(t, x.Release())
	}
	next := mk(40)
	assert.ElementsMatch(t, addresses(before), addresses(next))
	assert.Equal(t, 40, life.Made())
	assert.Equal(t, 40.0, float64(r.cache.Stats().Allocation.All.Current))

	kept, shared, viewed := next[3], next[4], next[5]
	life.Keep(kept)
	twin, err := r.Share(r.ctx, shared) // not in the lifetime
	require.NoError(t, err)
	view, err := r.Reshape(ctx, viewed, 1, 1) // in the lifetime, and of its memory
	require.NoError(t, err)
	require.NoError(t, life.Reset(r.ctx))
	assert.True(t, view.Released())
	assert.EqualValues(t, 2, r.cache.Stats().Allocation.All.Current)
	third := mk(60)
	assert.NotContains(t, addresses(third), addresses([]*Tensor{kept})[0])
	assert.NotContains(t, addresses(third), addresses([]*Tensor{shared})[0], "a twin has the memory")
	assert.Contains(t, addresses(third), addresses([]*Tensor{viewed})[0])
	assert.Equal(t, []float32{3}, get[float32](r, kept, nil))
	assert.Equal(t, []float32{4}, get[float32](r, twin, nil))

	require.NoError(t, kept.Release())
	require.NoError(t, twin.Release())
	require.NoError(t, life.Reset(r.ctx))
	fourth := mk(100)
	assert.Contains(t, addresses(fourth), addresses([]*Tensor{kept})[0])
	assert.Contains(t, addresses(fourth), addresses([]*Tensor{shared})[0])
	require.NoError(t, life.Close())
	assert.Zero(t, r.cache.MemoryAllocated())
}

// addresses returns the addresses of tensors.
func addresses(ts []*Tensor) (at []uintptr) {
	for _, t := range ts {
		at = append(at, uintptr(unsafe.Pointer(t)))
	}
	return at
}

// TestResetWithoutGroups closes and opens, and makes new tensors.
func TestResetWithoutGroups(t *testing.T) {
	r := newRig(t, 64<<20)
	outerCtx, outer := WithLifetime(r.ctx)
	ctx, life := WithLifetime(outerCtx)
	var seen []uintptr
	for range 4 {
		x, err := r.Zeros(ctx, Float32, 4)
		require.NoError(t, err)
		assert.NotContains(t, addresses([]*Tensor{x}), seen)
		seen = append(seen, addresses([]*Tensor{x})[0])
		require.NoError(t, life.Reset(r.ctx))
		assert.True(t, x.Released(), "the lifetime was open again, so that it owned it")
	}
	require.NoError(t, life.Close())
	late, err := r.Zeros(ctx, Float32, 4)
	require.NoError(t, err)
	require.NoError(t, life.Reset(r.ctx))
	assert.False(t, late.Released(), "of the lifetime around the closed one")
	require.NoError(t, outer.Close())
	assert.True(t, late.Released())
	assert.Zero(t, r.cache.MemoryAllocated())
}

// TestResetKeepsTheMemoryOfAGraph: a replay finds the memory of a tensor that its function read,
// whatever was made since.
func TestResetKeepsTheMemoryOfAGraph(t *testing.T) {
	r := newRig(t, 64<<20)
	ctx, life := WithLifetime(r.ctx)
	life.Group(0)
	require.NoError(t, life.Reset(r.ctx))
	x, err := FromSlice(ctx, r.Runtime, []float32{1, 2}, 2)
	require.NoError(t, err)
	out := put(r, []float32{0, 0}, 2)
	graph, err := r.Capture(r.ctx, func(ctx context.Context) error { return r.AddInPlace(ctx, out, x) })
	require.NoError(t, err)
	place := addresses([]*Tensor{x})[0]
	for range 3 {
		require.NoError(t, life.Reset(r.ctx))
		var made []*Tensor
		for range 20 {
			y, err := FromSlice(ctx, r.Runtime, []float32{100, 100}, 2)
			require.NoError(t, err)
			made = append(made, y)
		}
		require.NotContains(t, addresses(made), place)
		require.NoError(t, graph.Replay(r.ctx))
	}
	assert.Equal(t, []float32{3, 6}, get[float32](r, out, nil))
	require.NoError(t, graph.Close())
	require.NoError(t, life.Reset(r.ctx))
	var made []*Tensor
	for range 20 {
		y, err := r.Zeros(ctx, Float32, 1)
		require.NoError(t, err)
		made = append(made, y)
	}
	assert.Contains(t, addresses(made), place, "the graph was closed")
	require.NoError(t, life.Close())
	require.NoError(t, out.Release())
	n, _ := r.Live()
	assert.Zero(t, n)
}

// TestResetBesideReleases: other goroutines share a step's tensors and release the shares at any
// time. The shares have the right elements, and no slot is reused while a goroutine can access it,
// which the race detector would report.
func TestResetBesideReleases(t *testing.T) {
	r := newRig(t, 64<<20)
	ctx, life := WithLifetime(r.ctx)
	life.Group(0)
	const steps, tensors = 60, 12
	twins := make(chan []*Tensor, 2)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for ts := range twins {
				for _, x := range ts {
					runtime.Gosched()
					if err := x.Release(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(5, 6))
	for range steps {
		var step []*Tensor
		for range tensors {
			x, err := r.Zeros(ctx, Float32, 1+random.IntN(300))
			require.NoError(t, err)
			var twin *Tensor
			switch random.IntN(3) {
			case 0: // the tensor itself
				life.Keep(x)
				twin = x
			case 1:
				twin, err = r.Share(r.ctx, x)
			default:
				if twin, err = r.Share(ctx, x); err == nil {
					life.Keep(twin)
				}
			}
			require.NoError(t, err)
			step = append(step, twin)
		}
		twins <- step
		require.NoError(t, life.Reset(r.ctx))
	}
	close(twins)
	wg.Wait()
	require.NoError(t, life.Close())
	assert.Zero(t, r.cache.MemoryAllocated())
	n, bytes := r.Live()
	assert.Zero(t, n)
	assert.Zero(t, bytes)
}

// TestResetBesideTheCollector: dropped shares are found while slots are reused; for the race
// detector.
func TestResetBesideTheCollector(t *testing.T) {
	r := newRig(t, 64<<20)
	ctx, life := WithLifetime(r.ctx)
	life.Group(0)
	require.NoError(t, life.Reset(r.ctx))
	for range rounds(150, 30) {
		for range 12 {
			x, err := r.Zeros(ctx, Float32, 4)
			require.NoError(t, err)
			_, err = r.Share(r.ctx, x) // and drops it
			require.NoError(t, err)
		}
		require.NoError(t, life.Reset(r.ctx))
		runtime.GC()
	}
	require.NoError(t, life.Close())
	require.Eventually(t, func() bool {
		runtime.GC()
		n, _ := r.Live()
		return n == 0
	}, 10*time.Second, time.Millisecond)
	assert.Zero(t, r.cache.MemoryAllocated())
}

// TestATensorIsFoundOnce: if two goroutines find a dropped tensor, only one accesses it, because
// the slot of its share may be reused by then.
func TestATensorIsFoundOnce(t *testing.T) {
	r := newRig(t, 64<<20, OnLeak(func(Leak) {}))
	ctx, life := WithLifetime(r.ctx)
	life.Group(0)
	require.NoError(t, life.Reset(r.ctx))
	for range 100 {
		x, err := r.Zeros(ctx, Float32, 4)
		require.NoError(t, err)
		twin, err := r.Share(r.ctx, x)
		require.NoError(t, err)
		var found [2]bool
		var wg sync.WaitGroup
		for i := range found {
			wg.Go(func() { _, found[i] = twin.handle.reclaim() })
		}
		for range 3 {
			require.NoError(t, life.Reset(r.ctx))
			for range 4 {
				_, err = r.Zeros(ctx, Float32, 4)
				require.NoError(t, err)
			}
		}
		wg.Wait()
		require.NotEqual(t, found[0], found[1])
		require.NoError(t, life.Reset(r.ctx))
	}
	require.NoError(t, life.Close())
}

// TestALiveTensorKeepsItsGroupAlone: a tensor that was kept and dropped is found once no other
// tensor of its group is reachable, also after Reset.
func TestALiveTensorKeepsItsGroupAlone(t *testing.T) {
	leaks := make(chan Leak, 10)
	r := newRig(t, 64<<20, OnLeak(func(l Leak) { leaks <- l }))
	r.leaky = true
	live := func() *Tensor {
		ctx, life := WithLifetime(r.ctx)
		life.Group(0)
		var all []*Tensor
		for range 3 {
			all = nil
			require.NoError(t, life.Reset(r.ctx))
			for range 1000 {
				x, err := r.Zeros(ctx, Float32, 4)
				require.NoError(t, err)
				all = append(all, x)
			}
		}
		life.Keep(all[0], all[999]) // of different groups, and the second one is dropped
		require.NoError(t, life.Reset(r.ctx))
		require.NoError(t, life.Close())
		return all[0]
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		return len(leaks) == 1
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, live.Release())
}
