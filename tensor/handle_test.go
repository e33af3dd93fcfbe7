package tensor

import (
	"context"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

func (r *rig) zeros(ctx context.Context, elements int) *Tensor {
	r.t.Helper()
	x, err := r.Zeros(ctx, Float32, elements)
	require.NoError(r.t, err)
	return x
}

// reachable returns the handle's tensor, young or not.
func (r *rig) reachable(h *handle) *Tensor {
	r.live.mu.Lock()
	defer r.live.mu.Unlock()
	if h.young != nil {
		return h.young
	}
	return h.tensor.Value()
}

// TestHandlesAreListed in any order of creation and release.
func TestHandlesAreListed(t *testing.T) {
	r := newRig(t, 64<<20)
	random := rand.New(rand.NewPCG(1, 1))
	var live []*Tensor
	bytes := int64(0)
	for range 400 {
		if len(live) == 0 || random.IntN(20) > len(live) {
			live = append(live, r.zeros(r.ctx, 1+random.IntN(9)))
			bytes += live[len(live)-1].Bytes()
		} else {
			i := random.IntN(len(live))
			bytes -= live[i].Bytes()
			require.NoError(t, live[i].Release())
			live = slices.Delete(live, i, i+1)
		}
		n, b := r.Live()
		require.Equal(t, len(live), n)
		require.Equal(t, bytes, b)
		listed := r.live.all(func(*handle) bool { return true })
		require.Len(t, listed, len(live))
		for _, x := range live {
			require.Contains(t, listed, x.handle)
			require.Same(t, x, r.reachable(x.handle))
		}
		for back, h := (*handle)(nil), r.live.first; h != nil; back, h = h, h.next {
			require.Same(t, back, h.prev)
		}
	}
	require.Empty(t, r.live.all(func(*handle) bool { return false }))
	for _, x := range live {
		freed, err := x.handle.release(r.ctx)
		require.NoError(t, err)
		require.True(t, freed)
		require.Nil(t, x.handle.next)
		freed, err = x.handle.release(r.ctx)
		require.NoError(t, err)
		require.False(t, freed, "another time")
	}
}

// TestBorrowedTensorsAreNotListed, and their release does not remove others from the list.
func TestBorrowedTensorsAreNotListed(t *testing.T) {
	r := newRig(t, 64<<20)
	block, err := r.cache.Alloc(r.ctx, 100, r.Stream())
	require.NoError(t, err)
	own, other := r.zeros(r.ctx, 3), r.zeros(r.ctx, 4)
	x, err := r.FromBlock(block, Float32, 25)
	require.NoError(t, err)
	assert.False(t, x.Exclusive())
	view, err := r.Reshape(r.ctx, x, 5, 5)
	require.NoError(t, err)
	n, bytes := r.Live()
	assert.Equal(t, 2, n)
	assert.Equal(t, int64(28), bytes)
	require.NoError(t, x.Release())
	require.NoError(t, view.Release())
	n, bytes = r.Live()
	assert.Equal(t, 2, n)
	assert.Equal(t, int64(28), bytes)
	require.Len(t, r.live.all(func(*handle) bool { return true }), 2)
	require.NoError(t, own.Release())
	require.NoError(t, other.Release())
	require.NoError(t, block.Free())
}

// TestClosedRuntimesTakeNoTensors, not even from an operation that began before Close.
func TestClosedRuntimesTakeNoTensors(t *testing.T) {
	r := newRig(t, 64<<20)
	require.NoError(t, r.live.close())
	_, err := r.Zeros(r.ctx, Float32, 3)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorContains(t, err, "tensor: Zeros: ")
	assert.Zero(t, r.cache.MemoryAllocated())
	n, bytes := r.Live()
	assert.Zero(t, n)
	assert.Zero(t, bytes)
}

// TestCloseReportsFailures: a block that the program freed, and how much leaked, without a place if
// none was recorded.
func TestCloseReportsFailures(t *testing.T) {
	r := newRig(t, 64<<20)
	r.leaky = true
	x, y := r.zeros(r.ctx, 3), r.zeros(r.ctx, 5)
	require.NoError(t, x.Block().Free())
	assert.Nil(t, x.handle.made, "call stacks are for OnLeak")
	err := r.Close()
	require.ErrorIs(t, err, memcache.ErrFreed)
	require.ErrorIs(t, err, ErrLeaked)
	require.ErrorContains(t, err, "tensors were not released: 2, with 32 B")
	assert.NotContains(t, err.Error(), "made at")
	assert.True(t, y.Released())

	r = newRig(t, 64<<20)
	x = r.zeros(r.ctx, 3)
	require.NoError(t, x.Block().Free())
	err = x.Release()
	require.ErrorIs(t, err, memcache.ErrFreed)
	require.ErrorContains(t, err, "tensor: Release of float32 (3)")
	require.NoError(t, r.Close())
}

func TestStorageEndsOnce(t *testing.T) {
	s := newStorage(memcache.Block{}, false)
	require.True(t, s.retain())
	require.NoError(t, s.release(t.Context()))
	require.NoError(t, s.release(t.Context()))
	require.False(t, s.retain(), "the last reference is gone")
	require.Zero(t, s.refs.Load())
}

func TestAccessors(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, []float64{1, 2, 3, 4, 5, 6}, 3, 2)
	row, err := r.Rows(r.ctx, x, 1, 3)
	require.NoError(t, err)
	assert.Equal(t, Float64, row.Dtype())
	assert.Equal(t, Shape{2, 2}, row.Shape())
	assert.Equal(t, 4, row.Elements())
	assert.Equal(t, int64(32), row.Bytes())
	assert.Equal(t, int64(16), row.Offset())
	assert.Zero(t, x.Offset())
	assert.Same(t, r.Runtime, row.Runtime())
	assert.Equal(t, x.Block(), row.Block())
	assert.Equal(t, r.cache, r.Cache())
	row.Shape()[0] = 7
	assert.Equal(t, Shape{2, 2}, row.Shape(), "the caller's copy")
	assert.False(t, x.Exclusive())
	require.NoError(t, row.Release())
	assert.True(t, x.Exclusive())

	var none *Tensor
	assert.Nil(t, none.Shape())
	assert.Equal(t, Dtype(0), none.Dtype())
	assert.Zero(t, none.Elements())
	assert.Zero(t, none.Bytes())
	assert.Zero(t, none.Offset())
	assert.Nil(t, none.Runtime())
	assert.True(t, none.Block().IsZero())
	assert.True(t, none.Released())
	assert.False(t, none.Exclusive())
	require.ErrorIs(t, none.RecordStream(r.Stream()), ErrReleased)
	empty := put(r, []float32{}, 0)
	require.NoError(t, empty.RecordStream(r.Stream()))
	require.Error(t, x.RecordStream(nil))
}

// TestLifetimesForgetReleasedTensors, and kept tensors belong to their new owner.
func TestLifetimesForgetReleasedTensors(t *testing.T) {
	r := newRig(t, 64<<20)
	outerCtx, outer := WithLifetime(r.ctx)
	ctx, inner := WithLifetime(outerCtx)
	x, y := r.zeros(ctx, 3), r.zeros(ctx, 3)
	assert.Equal(t, 2, inner.owned)
	require.NoError(t, x.Release())
	assert.Equal(t, 1, inner.owned)
	inner.Keep(y)
	assert.Zero(t, inner.owned)
	assert.Equal(t, 1, outer.owned)
	require.NoError(t, y.Release())
	assert.Zero(t, outer.owned, "y's owner is the outer scope now")

	z := r.zeros(ctx, 3)
	require.NoError(t, outer.Close())
	require.NoError(t, inner.Close())
	assert.True(t, z.Released())
	late := r.zeros(ctx, 3)
	assert.False(t, late.Released(), "all scopes are closed: it is the caller's")
	inner.Keep(late, nil)
	require.NoError(t, late.Release())

	var none context.Context
	plain, alone := WithLifetime(none)
	assert.Nil(t, plain)
	require.NoError(t, alone.Close())
	assert.Equal(t, r.ctx, Detached(r.ctx))
	assert.Nil(t, Detached(none))

	ctx, life := WithLifetime(r.ctx)
	bad, good := r.zeros(ctx, 3), r.zeros(ctx, 4)
	require.NoError(t, bad.Block().Free())
	require.ErrorIs(t, life.Close(), memcache.ErrFreed)
	assert.True(t, good.Released())
	require.NoError(t, life.Close())
}

// TestReclaimCountsFreedBytes once, collects at most once a second, and only if there are tensors
// to find.
func TestReclaimCountsFreedBytes(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var mu sync.Mutex
	leaks := 0
	r := newRig(t, 64<<20, OnLeak(func(Leak) { mu.Lock(); defer mu.Unlock(); leaks++ }))
	r.leaky = true
	collections := func() uint32 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NumGC
	}
	before := collections()
	assert.Zero(t, r.reclaim(r.ctx, 1))
	assert.Equal(t, before, collections(), "there are no tensors")

	kept := r.zeros(r.ctx, 100)
	leak(r, 1000)
	func() {
		_, err := r.Share(r.ctx, kept)
		require.NoError(t, err)
	}()
	assert.Equal(t, int64(4000), r.reclaim(r.ctx, 1), "the view frees nothing")
	mu.Lock()
	assert.Equal(t, 2, leaks)
	mu.Unlock()
	n, _ := r.Live()
	assert.Equal(t, 1, n)
	assert.WithinDuration(t, time.Now(), r.gc.last, time.Minute)

	leak(r, 1000)
	before = collections()
	assert.Zero(t, r.reclaim(r.ctx, 1), "what was told is not told again, and a second has not passed")
	assert.Equal(t, before, collections())
	r.gc.mu.Lock()
	r.gc.bytes = 77 // a cleanup came too late for the last allocation
	r.gc.mu.Unlock()
	assert.Equal(t, int64(77), r.reclaim(r.ctx, 1))
	assert.Zero(t, r.reclaim(r.ctx, 1))
	r.gc.mu.Lock()
	r.gc.last = time.Now().Add(-2 * time.Second)
	r.gc.mu.Unlock()
	assert.Equal(t, int64(4000), r.reclaim(r.ctx, 1))
	assert.Nil(t, r.gc.running)
	require.NoError(t, kept.Release())
}

// TestReclaimReportsLeaks that no cleanup has found before.
func TestReclaimReportsLeaks(t *testing.T) {
	var leaks []Leak
	r := newRig(t, 64<<20, OnLeak(func(l Leak) { leaks = append(leaks, l) }))
	r.leaky = true
	func() {
		x, err := r.Zeros(memcache.WithModule(r.ctx, "head"), Float32, 1000)
		require.NoError(t, err)
		require.NoError(t, x.SetLabel(memcache.Label{Module: "head.0", Category: memcache.CategoryParameter}))
		r.live.ageAll()
		x.handle.cleanup.Stop()
	}()
	assert.Equal(t, int64(4000), r.reclaim(r.ctx, 1))
	require.Len(t, leaks, 1)
	assert.Equal(t, memcache.Label{Module: "head.0", Category: memcache.CategoryParameter}, leaks[0].Label, "what was said last")
	assert.Equal(t, int64(4000), leaks[0].Bytes)
}

// TestReclaimIsShared by calls during a collection, as long as their contexts let them wait.
func TestReclaimIsShared(t *testing.T) {
	r := newRig(t, 64<<20)
	c := &collection{done: make(chan struct{})}
	r.gc.running = c
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	assert.Zero(t, r.reclaim(ctx, 1))
	freed := make(chan int64)
	for range 2 {
		go func() { freed <- r.reclaim(r.ctx, 1) }()
	}
	select {
	case n := <-freed:
		t.Errorf("%d before the collection has ended", n)
	case <-time.After(5 * time.Millisecond):
	}
	c.freed = 5
	close(c.done)
	assert.Equal(t, int64(5), <-freed)
	assert.Equal(t, int64(5), <-freed)
	r.gc.mu.Lock()
	r.gc.running = nil
	r.gc.mu.Unlock()
}

// TestEveryCleanupIsWaitedFor, not only the first to end.
func TestEveryCleanupIsWaitedFor(t *testing.T) {
	gc := &reclaimer{dying: 2}
	rt := &Runtime{}
	rt.gc.dying = 1
	h := &handle{rt: rt}
	h.released.Store(true)
	done := make(chan struct{})
	go func() { gc.awaitCleanups(); close(done) }()
	rt.gc.idle = make(chan struct{})
	settled := rt.gc.idle
	h.died()
	select {
	case <-settled:
		t.Error("one cleanup is still at it")
	default:
	}
	assert.Equal(t, 1, rt.gc.dying)
	rt.gc.mu.Lock()
	rt.gc.dying = 0
	rt.gc.mu.Unlock()
	h.died()
	<-settled
	assert.Nil(t, rt.gc.idle)
	assert.Zero(t, rt.gc.dying)

	require.Eventually(t, func() bool { gc.mu.Lock(); defer gc.mu.Unlock(); return gc.idle != nil }, 10*time.Second, time.Millisecond)
	gc.mu.Lock()
	close(gc.idle)
	gc.idle = nil
	gc.mu.Unlock()
	<-done
}

func TestPlacesOfLeaks(t *testing.T) {
	assert.Equal(t, "an unknown place", place(nil))
	assert.Contains(t, place(stack()), "testing.tRunner", "the frame above this package's functions and tests")
	l := Leak{Shape: Shape{2}, Dtype: Float32, Bytes: 8}
	assert.Equal(t, "tensor: float32 (2) of 8 B was never released; made at an unknown place", l.String())
	l.Label = memcache.Label{Module: "0", Category: memcache.CategoryGradient, Step: 17}
	assert.Equal(t, "tensor: float32 (2) of 8 B, 0 (gradient) in step 17, was never released; made at an unknown place", l.String())
}

// TestParkedErrorsAreBounded and returned once.
func TestParkedErrorsAreBounded(t *testing.T) {
	var p parkedErrors
	p.add(nil)
	require.NoError(t, p.take())
	for range 20 {
		p.add(ErrClosed)
	}
	assert.Len(t, p.errs, 8)
	require.ErrorIs(t, p.take(), ErrClosed)
	require.NoError(t, p.take())
}

// TestSynchronizeReturnsParkedErrors, and Close returns later ones.
func TestSynchronizeReturnsParkedErrors(t *testing.T) {
	r := newRig(t, 64<<20)
	r.leaky = true
	r.parked.add(memcache.ErrFreed)
	require.ErrorIs(t, r.Synchronize(r.ctx), memcache.ErrFreed)
	require.NoError(t, r.Synchronize(r.ctx))
	r.parked.add(memcache.ErrFreed)
	require.ErrorIs(t, r.Close(), memcache.ErrFreed)
	x := &Tensor{}
	assert.Nil(t, x.Runtime())
}

// TestOperandsAreHeldUntilTheirWorkIsQueued, each of them, and released on every return.
func TestOperandsAreHeldUntilTheirWorkIsQueued(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x, y := put(r, []float32{1, 2}), put(r, []float32{3, 4})
	in, err := r.acquire("test", x, y, x)
	require.NoError(t, err)
	assert.Equal(t, int32(3), x.store.refs.Load())
	assert.Equal(t, int32(2), y.store.refs.Load())
	require.NoError(t, y.Release())
	assert.Equal(t, int32(1), y.store.refs.Load())
	in.release()
	in.release()
	assert.Equal(t, int32(1), x.store.refs.Load())
	assert.Zero(t, y.store.refs.Load())

	dst := put(r, []float32{0, 0})
	in, err = r.acquire("test", x)
	require.NoError(t, err)
	require.NoError(t, r.overwrite("test", &in, dst, x))
	assert.Equal(t, int32(2), dst.store.refs.Load())
	require.NoError(t, r.overwrite("test", &in, x, x))
	assert.Equal(t, int32(2), x.store.refs.Load(), "held already")
	in.release()
	assert.Equal(t, int32(1), dst.store.refs.Load())

	gone := put(r, []float32{5})
	require.NoError(t, gone.store.release(r.ctx)) // between the check and the use
	_, err = r.acquire("test", x, gone)
	require.ErrorIs(t, err, ErrReleased)
	assert.Equal(t, int32(1), x.store.refs.Load())
	_, err = r.Share(r.ctx, gone)
	require.ErrorIs(t, err, ErrReleased)
	gone.handle.released.Store(true)
	r.live.remove(gone.handle)

	whole, err := r.Full(r.ctx, 1, Int32, 2)
	require.NoError(t, err)
	_, err = r.acquireFloats("test", x, whole)
	require.ErrorIs(t, err, ErrDtype)
	assert.Equal(t, int32(1), x.store.refs.Load())
}
