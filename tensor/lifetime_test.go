package tensor

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

func TestReleaseIsIdempotentAndUseAfterItAnError(t *testing.T) {
	r := newRig(t, 64<<20)
	x := put(r, []float32{1, 2})
	require.NoError(t, x.Release())
	require.NoError(t, x.Release())
	require.NoError(t, (*Tensor)(nil).Release())
	assert.Zero(t, r.cache.MemoryAllocated())

	_, err := r.Exp(r.ctx, x)
	assert.ErrorIs(t, err, ErrReleased)
	_, err = ToSlice[float32](r.ctx, x, nil)
	assert.ErrorIs(t, err, ErrReleased)
	_, err = r.Reshape(r.ctx, x, 2, 1)
	assert.ErrorIs(t, err, ErrReleased)
	assert.ErrorIs(t, r.AddInPlace(r.ctx, x, x), ErrReleased)
	assert.ErrorIs(t, x.RecordStream(r.Stream()), ErrReleased)
	assert.ErrorIs(t, CopyFrom(r.ctx, x, []float32{1, 2}), ErrReleased)
}

func TestViewsShareMemoryUntilTheLastIsReleased(t *testing.T) {
	r := newRig(t, 64<<20)
	x := put(r, []float32{1, 2, 3, 4, 5, 6})
	assert.True(t, x.Exclusive())
	m, err := r.Reshape(r.ctx, x, -1, 2)
	require.NoError(t, err)
	row, err := r.Rows(r.ctx, m, 1, 3)
	require.NoError(t, err)
	twin, err := r.Share(r.ctx, row)
	require.NoError(t, err)
	assert.False(t, x.Exclusive())
	require.NoError(t, r.MulScalarInPlace(r.ctx, row, 10))
	assert.Equal(t, []float32{1, 2, 30, 40, 50, 60}, get[float32](r, x, nil))

	require.NoError(t, x.Release())
	require.NoError(t, m.Release())
	require.NoError(t, row.Release())
	assert.Equal(t, []float32{30, 40, 50, 60}, get[float32](r, twin, nil))
	assert.NotZero(t, r.cache.MemoryAllocated())
	require.NoError(t, twin.Release())
	assert.Zero(t, r.cache.MemoryAllocated())
}

func TestOverlappingViewsAreRefused(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, []float32{1, 2, 3, 4}, 4)
	a, err := r.Rows(r.ctx, x, 0, 3)
	require.NoError(t, err)
	b, err := r.Rows(r.ctx, x, 1, 4)
	require.NoError(t, err)
	assert.ErrorIs(t, r.AddInPlace(r.ctx, a, b), ErrInvalid)
	assert.NoError(t, r.AddInPlace(r.ctx, a, a))

	m, err := r.Reshape(r.ctx, x, 2, 2)
	require.NoError(t, err)
	row, err := r.Rows(r.ctx, x, 0, 2)
	require.NoError(t, err)
	assert.ErrorIs(t, r.AddBiasInPlace(r.ctx, m, row), ErrInvalid)
	assert.ErrorIs(t, r.AddBiasReLUInPlace(r.ctx, m, row), ErrInvalid)

	block, err := r.cache.Alloc(r.ctx, 16, r.Stream())
	require.NoError(t, err)
	p, err := r.FromBlock(block, Float32, 2, 2)
	require.NoError(t, err)
	q, err := r.FromBlock(block, Float32, 2)
	require.NoError(t, err)
	assert.ErrorIs(t, r.AddInPlace(r.ctx, p, q), ErrInvalid, "two tensors of one block")
	require.NoError(t, block.Free())
}

func TestReshape(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, make([]float32, 12), 3, 4)
	for _, shape := range [][]int{{5, 2}, {-1, 5}, {-1, -1}, {-2, 6}, {}, {0, -1}, {0}} {
		_, err := r.Reshape(r.ctx, x, shape...)
		assert.ErrorIs(t, err, ErrShape, "%v", shape)
	}
	one := put(r, []float32{1})
	_, err := r.Reshape(r.ctx, one, math.MaxInt, math.MaxInt)
	assert.ErrorIs(t, err, ErrShape, "the product wraps to 1")
	y, err := r.Reshape(r.ctx, x, 2, -1, 3)
	require.NoError(t, err)
	assert.Equal(t, Shape{2, 2, 3}, y.Shape())
	empty := put(r, []float32{}, 0, 4)
	y, err = r.Reshape(r.ctx, empty, -1, 2)
	require.NoError(t, err)
	assert.Equal(t, Shape{0, 2}, y.Shape())
}

func TestViewAs(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, []float32{1, 2, 3, 4}, 4)
	whole, err := r.ViewAs(r.ctx, x, 0, Uint8, 16)
	require.NoError(t, err)
	part, err := r.ViewAs(r.ctx, whole, 4, Float32, 2)
	require.NoError(t, err)
	assert.Equal(t, []float32{2, 3}, get[float32](r, part, nil))
	part, err = r.ViewAs(r.ctx, part, 4, Int32)
	require.NoError(t, err)
	assert.EqualValues(t, 8, part.Offset())
	assert.Equal(t, []int32{int32(math.Float32bits(3))}, get[int32](r, part, nil))
	require.NoError(t, x.Release())
	require.NoError(t, whole.Release())
	assert.Equal(t, []int32{int32(math.Float32bits(3))}, get[int32](r, part, nil), "it keeps the memory")

	x = put(r, []float32{1, 2, 3, 4}, 4)
	for _, refused := range []struct {
		offset int64
		dtype  Dtype
		n      int
		err    error
	}{
		{4, Float32, 4, ErrShape}, {-4, Float32, 1, ErrShape}, {17, Uint8, 0, ErrShape},
		{math.MaxInt64, Uint8, 1, ErrShape}, {4, Float64, 1, ErrInvalid}, {0, Float32, -1, ErrShape},
		{0, Dtype(99), 1, ErrDtype},
	} {
		_, err := r.ViewAs(r.ctx, x, refused.offset, refused.dtype, refused.n)
		assert.ErrorIs(t, err, refused.err, "%+v", refused)
	}
	end, err := r.ViewAs(r.ctx, x, 16, Uint8, 0)
	require.NoError(t, err, "nothing, at the end")
	require.Zero(t, end.Bytes())
	require.NoError(t, end.Release())
	require.NoError(t, x.Release())
	_, err = r.ViewAs(r.ctx, x, 0, Float32, 1)
	assert.ErrorIs(t, err, ErrReleased)
}

func TestLifetimesReleaseWhatWasNotKept(t *testing.T) {
	r := newRig(t, 64<<20)
	outerCtx, outer := WithLifetime(r.ctx)
	innerCtx, inner := WithLifetime(outerCtx)
	mk := func(ctx context.Context) *Tensor {
		x, err := r.Zeros(ctx, Float32, 3)
		require.NoError(t, err)
		return x
	}
	dropped, kept, passed := mk(innerCtx), mk(innerCtx), mk(innerCtx)
	outside, detached := mk(outerCtx), mk(Detached(innerCtx))
	early := mk(innerCtx)
	require.NoError(t, early.Release())
	inner.Keep(kept, passed, outside, nil)
	require.NoError(t, inner.Close())
	require.NoError(t, inner.Close())
	assert.True(t, dropped.Released())
	assert.False(t, kept.Released(), "kept by the inner scope, owned by the outer")
	late := mk(innerCtx)
	assert.False(t, late.Released(), "made with the context of a closed scope: the outer one owns it")
	outer.Keep(kept)
	require.NoError(t, outer.Close())
	assert.True(t, outside.Released())
	assert.True(t, passed.Released(), "kept by the inner scope only")
	assert.True(t, late.Released())
	assert.False(t, kept.Released())
	assert.False(t, detached.Released())
	require.NoError(t, kept.Release())
	require.NoError(t, detached.Release())
	assert.Zero(t, r.cache.MemoryAllocated())
}

// leak makes a tensor that is never released.
func leak(r *rig, elements int) {
	_, err := r.Zeros(r.ctx, Float32, elements)
	require.NoError(r.t, err)
}

func TestLeakedTensorsAreReclaimedAndReported(t *testing.T) {
	var mu sync.Mutex
	var leaks []Leak
	r := newRig(t, 64<<20, OnLeak(func(l Leak) {
		mu.Lock()
		defer mu.Unlock()
		leaks = append(leaks, l)
	}))
	x := put(r, []float32{1, 2})
	view, err := r.Reshape(r.ctx, x, 2, 1)
	require.NoError(t, err)
	leak(r, 1000)
	assert.Eventually(t, func() bool {
		runtime.GC()
		mu.Lock()
		defer mu.Unlock()
		return len(leaks) == 1
	}, 20*time.Second, time.Millisecond)
	assert.Equal(t, int64(512), r.cache.MemoryAllocated(), "the leaked tensor's memory is back, the others' is not")
	assert.Contains(t, leaks[0].Place(), "lifetime_test.go")
	assert.Contains(t, leaks[0].String(), "float32 (1000)")
	assert.Equal(t, int64(4000), leaks[0].Bytes)
	require.NoError(t, x.Release())
	require.NoError(t, view.Release())
}

func TestAViewKeepsTheMemoryOfADroppedTensor(t *testing.T) {
	r := newRig(t, 64<<20)
	view := func() *Tensor {
		x := put(r, []float32{1, 2, 3})
		v, err := r.Reshape(r.ctx, x, 3, 1)
		require.NoError(t, err)
		return v
	}()
	for range 5 {
		runtime.GC()
		time.Sleep(time.Millisecond) // cleanups must not free the memory meanwhile
	}
	leak(r, 3) // would get the memory, if it were free
	assert.Equal(t, []float32{1, 2, 3}, get[float32](r, view, nil))
	require.NoError(t, view.Release())
	r.leaky = true
}

func TestMemoryPressureReclaimsLeakedTensors(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // only collections that the runtime asks for
	r := newRig(t, 64<<20)
	r.leaky = true
	leak(r, 10<<20) // 40 MiB
	x, err := r.New(r.ctx, Float32, 10<<20)
	require.NoError(t, err, "the leaked memory was not found")
	require.NoError(t, x.Release())

	leak(r, 10<<20)
	r.gc.mu.Lock()
	r.gc.last = time.Now().Add(time.Hour) // as if a collection had just ended
	r.gc.mu.Unlock()
	_, err = r.New(r.ctx, Float32, 12<<20)
	assert.ErrorIs(t, err, memcache.ErrOutOfMemory, "collected twice in a second")
}

// freeGate lets the first free wait.
type freeGate struct {
	once          sync.Once
	entered, open chan struct{}
}

func (g *freeGate) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	if op == memcache.OpFree {
		g.once.Do(func() {
			close(g.entered)
			<-g.open
		})
	}
	return ctx, nil
}

func TestMemoryPressureWaitsForARunningCleanup(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	gate := &freeGate{entered: make(chan struct{}), open: make(chan struct{})}
	r := newObservedRig(t, 64<<20, gate)
	leak(r, 10<<20)
	r.live.ageAll()
	runtime.GC()
	<-gate.entered // the cleanup has found the tensor, but not yet freed its memory
	time.AfterFunc(20*time.Millisecond, func() { close(gate.open) })
	x, err := r.New(r.ctx, Float32, 10<<20)
	require.NoError(t, err)
	require.NoError(t, x.Release())
}

// TestCloseWaitsForARunningCleanup: memory of tensors that the garbage collector found is free when
// Close returns.
func TestCloseWaitsForARunningCleanup(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	gate := &freeGate{entered: make(chan struct{}), open: make(chan struct{})}
	r := newObservedRig(t, 64<<20, gate)
	leak(r, 1000)
	r.live.ageAll()
	runtime.GC()
	<-gate.entered // the cleanup has found the tensor, but not yet freed its memory
	closed := make(chan error, 1)
	go func() { closed <- r.Close() }()
	for waits := false; !waits && len(closed) == 0; runtime.Gosched() {
		r.gc.mu.Lock()
		waits = r.gc.idle != nil
		r.gc.mu.Unlock()
	}
	assert.Empty(t, closed, "Close returns before the memory is free")
	close(gate.open)
	require.NoError(t, <-closed)
	assert.Zero(t, r.cache.MemoryAllocated())
}

func TestCloseReleasesAndReportsWhatIsLive(t *testing.T) {
	r := newRig(t, 64<<20, OnLeak(func(Leak) {}))
	r.leaky = true
	x, err := r.Zeros(memcache.WithStep(memcache.WithModule(r.ctx, "head"), 3), Float32, 256)
	require.NoError(t, err)
	require.NoError(t, put(r, []float32{1}).Release())
	n, bytes := r.Live()
	assert.Equal(t, 1, n)
	assert.Equal(t, int64(1024), bytes)
	err = r.Close()
	require.ErrorIs(t, err, ErrLeaked)
	assert.Contains(t, err.Error(), "lifetime_test.go")
	assert.Contains(t, err.Error(), "1.0 KiB, one of them head (other) in step 3, made at ")
	assert.Equal(t, err, r.Close())
	assert.True(t, x.Released())
	assert.Zero(t, r.cache.MemoryAllocated())

	_, err = r.Zeros(r.ctx, Float32, 1)
	assert.ErrorIs(t, err, ErrClosed)
	_, err = r.Exp(r.ctx, x)
	assert.ErrorIs(t, err, ErrClosed)
	assert.ErrorIs(t, r.Synchronize(r.ctx), ErrClosed)
}

// TestCloseReportsOneLeak: the label and the place of one tensor, however many leak, with and
// without labels.
func TestCloseReportsOneLeak(t *testing.T) {
	r := newRig(t, 64<<20, OnLeak(func(Leak) {}))
	r.leaky = true
	var kept []*Tensor
	lose := func(ctx context.Context) {
		x, err := r.Zeros(ctx, Float32, 256)
		require.NoError(t, err)
		kept = append(kept, x)
	}
	head := memcache.WithModule(r.ctx, "head")
	lose(r.ctx) // Close comes to it last
	lose(head)
	lose(r.ctx)
	lose(head)
	err := r.Close()
	require.ErrorIs(t, err, ErrLeaked)
	assert.Regexp(t, `: 4, with 4\.0 KiB, one of them made at [^,]*lifetime_test\.go:\d+\)$`, err.Error(), "the label of another one does not stand beside its place")
	for _, x := range kept {
		assert.True(t, x.Released())
	}
}

func TestBorrowedBlocks(t *testing.T) {
	r := newRig(t, 64<<20)
	block, err := r.cache.Alloc(r.ctx, 100, r.Stream())
	require.NoError(t, err)
	x, err := r.FromBlock(block, Float32, 5, 5)
	require.NoError(t, err)
	require.NoError(t, CopyFrom(r.ctx, x, make([]float32, 25)))
	y, err := r.AddScalar(r.ctx, x, 1)
	assert.Equal(t, float32(1), get[float32](r, y, err)[24])
	require.NoError(t, y.Release())
	require.NoError(t, x.Release())
	assert.NotZero(t, r.cache.MemoryAllocated())
	_, err = r.FromBlock(block, Float32, 1000)
	assert.ErrorIs(t, err, ErrShape)
	require.NoError(t, block.Free())
	_, err = r.FromBlock(block, Float32, 5)
	assert.ErrorIs(t, err, memcache.ErrFreed)

	other := newRig(t, 64<<20)
	if other.dev.ID() == r.dev.ID() {
		return // the backend shares its device
	}
	block, err = other.cache.Alloc(r.ctx, 100, other.Stream())
	require.NoError(t, err)
	_, err = r.FromBlock(block, Float32, 5)
	assert.ErrorIs(t, err, memcache.ErrInvalid, "a block of another device")
	require.NoError(t, block.Free())
}

// TestFreedBlocks: an operation on freed memory is an error, whatever its other operands are.
func TestFreedBlocks(t *testing.T) {
	r := newRig(t, 64<<20)
	if r.visible == nil {
		t.Skip("the device does not know its allocations")
	}
	block, err := r.cache.Alloc(r.ctx, 100, r.Stream())
	require.NoError(t, err)
	x, err := r.FromBlock(block, Float32, 5, 5)
	require.NoError(t, err)
	require.NoError(t, block.Free())
	require.NoError(t, r.Synchronize(r.ctx))
	require.NoError(t, r.cache.EmptyCache(r.ctx))
	_, _, err = r.Normalize(r.ctx, x, nil, nil, NormConfig{Shape: []int{5}, Eps: 1e-5})
	require.ErrorIs(t, err, device.ErrInvalid)
	require.NoError(t, x.Release())
}

// TestFromBlockRecordsTheStream of the runtime, so that a block of another stream is not reused
// under a kernel.
func TestFromBlockRecordsTheStream(t *testing.T) {
	r := newRig(t, 64<<20)
	r.needsHost("its kernel waits for the test")
	side := cisterntest.Stream(t, r.dev)
	block, err := r.cache.Alloc(r.ctx, 100, side)
	require.NoError(t, err)
	x, err := r.FromBlock(block, Float32, 25)
	require.NoError(t, err)
	release := cisterntest.Hold(t, r.Stream())
	require.NoError(t, r.Zero(r.ctx, x))
	require.NoError(t, x.Release())
	require.NoError(t, block.Free())
	next, err := r.cache.Alloc(r.ctx, 100, side)
	require.NoError(t, err)
	assert.NotEqual(t, block.Ptr(), next.Ptr())
	release()
	require.NoError(t, next.Free())
	require.NoError(t, side.Close())
}

func TestRecordStream(t *testing.T) {
	r := newRig(t, 64<<20)
	r.needsHost("its kernel waits for the test")
	other := cisterntest.Stream(t, r.dev)
	defer other.Close()
	x := put(r, []float32{1})
	require.NoError(t, x.RecordStream(other))
	release := cisterntest.Hold(t, other)
	before := x.Block().Ptr()
	require.NoError(t, x.Release())
	y := put(r, []float32{2})
	assert.NotEqual(t, before, y.Block().Ptr(), "the memory is still in use by the other stream")
	release()
	require.NoError(t, y.Release())
	require.NoError(t, other.Synchronize(r.ctx))
}

func TestReleaseConcurrentSafe(t *testing.T) {
	r := newRig(t, 64<<20)
	for range 200 {
		x := put(r, []float32{1, 2, 3, 4})
		var wg sync.WaitGroup
		wg.Go(func() {
			y, err := r.Exp(r.ctx, x)
			if err != nil {
				assert.ErrorIs(t, err, ErrReleased)
				return
			}
			assert.NoError(t, y.Release())
		})
		wg.Go(func() { assert.NoError(t, x.Release()) })
		wg.Go(func() { assert.NoError(t, x.Release()) })
		wg.Wait()
	}
}

func TestPrintingNeverTouchesMemory(t *testing.T) {
	r := newRig(t, 64<<20)
	x := put(r, []float32{1, 2, 3, 4}, 2, 2)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x", "%q"} {
		assert.Equal(t, "float32 (2, 2) on "+r.dev.Name(), fmt.Sprintf(verb, x))
	}
	require.NoError(t, x.Release())
	assert.True(t, strings.HasSuffix(fmt.Sprint(x), "released"))
	assert.Equal(t, "no tensor", fmt.Sprint((*Tensor)(nil)))
}
