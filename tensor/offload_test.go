package tensor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// offloadRig is an offloader whose copy streams the test can hold.
type offloadRig struct {
	*rig
	o       *Offloader
	out, in device.Stream
}

func newOffloadRig(t *testing.T, cfg OffloadConfig) *offloadRig {
	t.Helper()
	r := newRig(t, 64<<20)
	cfg.Out, cfg.In = cisterntest.Stream(t, r.dev), cisterntest.Stream(t, r.dev)
	if cfg.MinBytes == 0 {
		cfg.MinBytes = 1
	}
	o, err := NewOffloader(r.Runtime, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, o.Close()) })
	return &offloadRig{r, o, cfg.Out, cfg.In}
}

// ramp returns the elements of the tests' tensors: starting at from, in steps of 1.
func ramp(from float32) []float32 {
	s := make([]float32, 4096)
	for i := range s {
		s[i] = from + float32(i)
	}
	return s
}

func (r *offloadRig) offload(x *Tensor) {
	r.t.Helper()
	away, err := r.o.Offload(r.ctx, x)
	require.NoError(r.t, err)
	require.True(r.t, away)
	require.True(r.t, x.Offloaded())
}

// TestOffloadAndBack: elements, versions, labels and views are as before, and the memory was free
// meanwhile.
func TestOffloadAndBack(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	ctx := memcache.WithLabel(r.ctx, memcache.Label{Module: "m", Category: memcache.CategoryActivation, Step: 3})
	x, err := FromSlice(ctx, r.Runtime, ramp(0), 64, 64)
	require.NoError(t, err)
	require.NoError(t, r.MulScalarInPlace(r.ctx, x, 2))
	v, err := r.Rows(r.ctx, x, 1, 3)
	require.NoError(t, err)
	require.Equal(t, MemoryOf(x), MemoryOf(v))
	require.Equal(t, 2, MemoryOf(x).Tensors())
	label, version, before := x.Label(), x.Version(), r.cache.MemoryAllocated()
	require.NotZero(t, version)
	for range 3 {
		r.offload(x)
		require.True(t, v.Offloaded())
		require.Equal(t, before-x.Bytes(), r.cache.MemoryAllocated())
		require.Equal(t, label, x.Label())
		require.True(t, x.Block().IsZero())
		require.EqualValues(t, 1, r.o.Stats().Offloaded.Current)
		require.Equal(t, x.Bytes(), r.o.Stats().OffloadedBytes.Current)
		_, err = r.Exp(r.ctx, v)
		require.ErrorIs(t, err, ErrOffloaded)
		_, err = ToSlice[float32](r.ctx, x, nil)
		require.ErrorIs(t, err, ErrOffloaded)
		require.ErrorIs(t, x.RecordStream(r.out), ErrOffloaded)
		r.offload(v) // which it is
		require.NoError(t, r.o.Prefetch(r.ctx, v))
		require.Equal(t, before, r.cache.MemoryAllocated())
		require.True(t, x.Offloaded())
		require.NoError(t, r.o.Fetch(r.ctx, x))
		require.NoError(t, r.o.Fetch(r.ctx, v))
		require.False(t, v.Offloaded())
		require.Equal(t, label, x.Block().Label())
		require.Equal(t, version, v.Version())
		require.Equal(t, []float32{2 * 64, 2 * 65}, get[float32](r.rig, v, nil)[:2])
	}
	want := ramp(0)
	for i := range want {
		want[i] *= 2
	}
	require.Equal(t, want, get[float32](r.rig, x, nil))
	s := r.o.Stats()
	require.EqualValues(t, 3, s.Fetched)
	require.EqualValues(t, 3, s.Prefetched)
	require.Equal(t, memcache.Stat{Peak: 1, Allocated: 3, Freed: 3}, s.Offloaded)
	require.Equal(t, memcache.Stat{Current: x.Bytes(), Peak: x.Bytes(), Allocated: x.Bytes()}, s.PinnedBytes, "one buffer for all of them")
	require.Equal(t, x.Bytes(), r.pool.Stats().ActiveBytes.Current)
	require.NoError(t, x.Release())
	require.NoError(t, v.Release())
}

// TestOffloadWithinABudget: tensors for which there is no pinned memory stay, the limit is never
// exceeded, and buffers of unused sizes are released for new ones.
func TestOffloadWithinABudget(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{MaxBytes: 28 << 10, MinBytes: 4 << 10})
	small, x, y := put(r.rig, ramp(0)[:1000]), put(r.rig, ramp(1)), put(r.rig, ramp(2)[:2048])
	var gets int64
	for round := range 3 {
		for _, c := range []struct {
			t    *Tensor
			away bool
		}{{small, false}, {x, true}, {y, true}} {
			away, err := r.o.Offload(r.ctx, c.t)
			require.NoError(t, err)
			require.Equal(t, c.away, away && c.t.Offloaded(), "%v", c.t)
			if c.t == y {
				require.NoError(t, r.o.Fetch(r.ctx, x))
			}
		}
		require.NoError(t, r.o.Fetch(r.ctx, y))
		if round == 0 {
			gets = r.pool.Stats().ActiveRequests.Allocated
		}
	}
	s := r.o.Stats()
	require.Zero(t, s.Stayed)
	require.Equal(t, gets, r.pool.Stats().ActiveRequests.Allocated, "both sizes are kept")
	z := put(r.rig, ramp(3))
	r.offload(x)
	away, err := r.o.Offload(r.ctx, z)
	require.NoError(t, err)
	require.False(t, away)
	require.False(t, z.Offloaded())
	require.Equal(t, ramp(3), get[float32](r.rig, z, nil))
	s = r.o.Stats()
	require.EqualValues(t, 1, s.Stayed)
	require.Equal(t, z.Bytes(), s.StayedBytes)
	require.LessOrEqual(t, s.PinnedBytes.Peak, int64(28<<10))
	require.NoError(t, r.o.Fetch(r.ctx, x))
	w := put(r.rig, append(ramp(0), ramp(1)...)[:6000]) // 24,000 bytes, for which both must be released
	r.offload(w)
	require.EqualValues(t, 24<<10, r.o.Stats().PinnedBytes.Current)
	require.NoError(t, w.Release())
	for _, t := range []*Tensor{small, x, y, z} {
		require.NoError(r.t, t.Release())
	}
}

// TestOffloadWithoutPinnedMemory: if the pool is exhausted, the tensor stays, without an error.
func TestOffloadWithoutPinnedMemory(t *testing.T) {
	rt, err := Open("host?capacity=16MiB", PoolConfig(transfer.Config{MaxBytes: 64 << 10}))
	require.NoError(t, err)
	r := &rig{Runtime: rt, t: t, ctx: t.Context(), cache: rt.Cache()}
	o, err := NewOffloader(rt, OffloadConfig{MinBytes: 1})
	require.NoError(t, err)
	x := put(r, ramp(0))
	taken, err := rt.Pool().Get(r.ctx, 56<<10)
	require.NoError(t, err)
	for _, want := range []bool{false, true} {
		away, err := o.Offload(r.ctx, x)
		require.NoError(t, err)
		require.Equal(t, want, away)
		require.Equal(t, want, x.Offloaded())
		require.NoError(t, taken.Release())
		taken = transfer.Buffer{}
	}
	require.EqualValues(t, 1, o.Stats().Stayed)
	require.Equal(t, x.Bytes(), o.Stats().PinnedBytes.Current)
	require.NoError(t, o.Fetch(r.ctx, x))
	require.Equal(t, ramp(0), get[float32](r, x, nil))
	require.NoError(t, x.Release())
	require.NoError(t, rt.Close())
}

// fill allocates all memory of the device.
func (r *offloadRig) fill() (filler []memcache.Block) {
	for size := int64(32 << 20); size >= 512; size /= 2 {
		for {
			b, err := r.cache.Alloc(r.ctx, size, r.stream)
			if err != nil {
				break
			}
			filler = append(filler, b)
		}
	}
	return filler
}

// TestOffloadGivesUpPrefetchedMemory: memory that was copied back ahead of its use is given to
// other allocations, the latest first, and is copied back again. A Prefetch takes no memory from
// another Prefetch.
func TestOffloadGivesUpPrefetchedMemory(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x, y, z := put(r.rig, ramp(0)), put(r.rig, ramp(1)), put(r.rig, ramp(2))
	for _, t := range []*Tensor{x, y, z} {
		r.offload(t)
	}
	idle(t, r.out)
	room := []*Tensor{put(r.rig, ramp(3)), put(r.rig, ramp(4))}
	filler := r.fill()
	for _, t := range room {
		require.NoError(r.t, t.Release())
	}
	require.NoError(t, r.o.Prefetch(r.ctx, x))
	require.NoError(t, r.o.Prefetch(r.ctx, y))
	require.ErrorIs(t, r.o.Prefetch(r.ctx, z), memcache.ErrOutOfMemory)
	held := r.cache.MemoryAllocated()
	w, err := r.New(r.ctx, Float32, 4096)
	require.NoError(t, err, "y gives its memory up")
	require.Equal(t, held, r.cache.MemoryAllocated())
	require.NoError(t, CopyFrom(r.ctx, w, ramp(5)))
	copies := r.pool.Stats().H2DCopies
	require.NoError(t, r.o.Fetch(r.ctx, x))
	require.Equal(t, held, r.cache.MemoryAllocated())
	require.Equal(t, copies, r.pool.Stats().H2DCopies, "x has kept it")
	require.ErrorIs(t, r.o.Fetch(r.ctx, y), memcache.ErrOutOfMemory)
	require.Equal(t, ramp(5), get[float32](r.rig, w, nil))
	require.NoError(t, w.Release())
	for i, u := range []*Tensor{x, y, z} {
		require.NoError(t, r.o.Fetch(r.ctx, u))
		require.Equal(t, ramp(float32(i)), get[float32](r.rig, u, nil))
		require.NoError(t, u.Release())
	}
	for _, b := range filler {
		require.NoError(t, b.Free())
	}
}

// TestOffloadedWithoutDeviceMemory: Fetch returns an error with the number of bytes, and works
// later.
func TestOffloadedWithoutDeviceMemory(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x := put(r.rig, ramp(0))
	r.offload(x)
	idle(t, r.out)
	filler := r.fill()
	for _, call := range []func(context.Context, *Tensor) error{r.o.Prefetch, r.o.Fetch} {
		err := call(r.ctx, x)
		require.ErrorIs(t, err, memcache.ErrOutOfMemory)
		require.ErrorContains(t, err, "16384 bytes that are offloaded")
		require.True(t, x.Offloaded())
	}
	for _, b := range filler {
		require.NoError(t, b.Free())
	}
	require.NoError(t, r.o.Fetch(r.ctx, x))
	require.Equal(t, ramp(0), get[float32](r.rig, x, nil))
	require.NoError(t, x.Release())
}

// TestOffloadedTensorsAreReleased at every stage, and leave nothing allocated.
func TestOffloadedTensorsAreReleased(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	for stage := range 3 {
		x := put(r.rig, ramp(0))
		holdOut, holdIn := cisterntest.Hold(t, r.out), cisterntest.Hold(t, r.in)
		r.offload(x)
		switch stage {
		case 1:
			require.NoError(t, r.o.Prefetch(r.ctx, x))
		case 2: // and again, before the copy is done
			require.NoError(t, r.o.Prefetch(r.ctx, x))
			r.offload(x)
			require.NoError(t, r.o.Prefetch(r.ctx, x))
		}
		require.NoError(t, x.Release())
		require.Zero(t, r.cache.MemoryAllocated())
		require.Zero(t, r.o.Stats().Offloaded.Current)
		y := put(r.rig, ramp(1))
		holdIn()
		holdOut()
		require.Equal(t, ramp(1), get[float32](r.rig, y, nil))
		require.NoError(t, y.Release())
	}
}

// TestOffloadRefuses tensors that can't be moved, and reports why.
func TestOffloadRefuses(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x := put(r.rig, ramp(0))
	block, err := r.cache.Alloc(r.ctx, 1024, r.stream)
	require.NoError(t, err)
	borrowed, err := r.FromBlock(block, Float32, 256)
	require.NoError(t, err)
	away, err := r.o.Offload(r.ctx, borrowed)
	require.NoError(t, err)
	require.False(t, away, "the block is somebody else's")
	_, err = r.o.Offload(r.ctx, nil)
	require.ErrorIs(t, err, ErrInvalid)
	var none *Offloader
	_, err = none.Offload(r.ctx, x)
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, none.Close())
	_, err = NewOffloader(nil, OffloadConfig{})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = NewOffloader(r.Runtime, OffloadConfig{MaxBytes: -1})
	require.ErrorContains(t, err, "MaxBytes -1")
	other := newRig(t, 1<<20)
	if other.dev.ID() != r.dev.ID() { // a GPU that was opened twice is one device
		_, err = NewOffloader(other.Runtime, OffloadConfig{Out: r.out})
		require.ErrorIs(t, err, ErrInvalid)
	}
	second, err := NewOffloader(r.Runtime, OffloadConfig{})
	require.NoError(t, err)
	r.offload(x)
	require.ErrorContains(t, second.Fetch(r.ctx, x), "another offloader")
	for _, call := range []func(context.Context, *Tensor) error{r.o.Prefetch, r.o.Fetch} {
		require.ErrorIs(t, call(nil, x), ErrInvalid) //nolint:staticcheck // what a program may do by mistake
	}
	require.NoError(t, x.SetLabel(memcache.Label{Module: "later"}))
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	require.Error(t, r.o.Fetch(ctx, x))
	require.True(t, x.Offloaded())
	require.NoError(t, r.o.Prefetch(r.ctx, x))
	require.NoError(t, x.SetLabel(memcache.Label{Module: "last"}))
	require.Equal(t, "last", x.Label().Module)
	require.NoError(t, r.o.Fetch(r.ctx, x))
	require.Equal(t, "last", x.Block().Label().Module)
	away, err = r.o.Offload(ctx, x)
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, away || x.Offloaded())
	require.Equal(t, ramp(0), get[float32](r.rig, x, nil))
	require.NoError(t, errors.Join(x.Release(), borrowed.Release(), block.Free()))
	_, err = r.o.Offload(r.ctx, x)
	require.ErrorIs(t, err, ErrReleased)
}

// TestOffloadedTensorsAreStreamed from and to the host's memory, with copies in flight.
func TestOffloadedTensorsAreStreamed(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x := put(r.rig, ramp(0))
	v, err := r.Rows(r.ctx, x, 1000, 3000)
	require.NoError(t, err)
	holdOut := cisterntest.Hold(t, r.out)
	r.offload(x)
	time.AfterFunc(time.Millisecond, holdOut)
	var w bytes.Buffer
	require.NoError(t, WriteBytes(r.ctx, v, &w))
	require.Equal(t, bytesOf(ramp(0)[1000:3000]), w.Bytes())
	allocated, version := r.cache.MemoryAllocated(), x.Version()
	require.NoError(t, r.o.Prefetch(r.ctx, x))
	require.NoError(t, ReadBytes(r.ctx, v, bytes.NewReader(bytesOf(ramp(-7)[:2000]))))
	require.Equal(t, allocated, r.cache.MemoryAllocated(), "what was on its way is old")
	require.Greater(t, x.Version(), version)
	require.ErrorIs(t, ReadBytes(r.ctx, x, bytes.NewReader(w.Bytes()[:0])), io.ErrUnexpectedEOF)
	var none context.Context
	require.ErrorIs(t, ReadBytes(none, x, &w), ErrInvalid)
	require.NoError(t, r.o.Fetch(r.ctx, x))
	want := ramp(0)
	copy(want[1000:], ramp(-7)[:2000])
	require.Equal(t, want, get[float32](r.rig, x, nil))
	r.offload(x)
	require.NoError(t, errors.Join(x.Release(), v.Release()))
	require.ErrorIs(t, WriteBytes(r.ctx, v, &w), ErrReleased)
	require.ErrorIs(t, ReadBytes(r.ctx, v, &w), ErrReleased)
}

// TestOffloaderClose: tensors that are still offloaded can be released, and the runtime's Close
// closes open offloaders.
func TestOffloaderClose(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x := put(r.rig, ramp(0))
	r.offload(x)
	require.NoError(t, r.o.Close())
	require.NoError(t, r.o.Close())
	require.ErrorIs(t, r.o.Fetch(r.ctx, x), ErrClosed)
	require.NotZero(t, r.o.Stats().PinnedBytes.Current)
	require.NoError(t, x.Release())
	require.Zero(t, r.o.Stats().PinnedBytes.Current)

	rt, err := Open("host?capacity=16MiB")
	require.NoError(t, err)
	o, err := NewOffloader(rt, OffloadConfig{MinBytes: 1})
	require.NoError(t, err)
	y, err := FromSlice(r.ctx, rt, ramp(0))
	require.NoError(t, err)
	_, err = o.Offload(r.ctx, y)
	require.NoError(t, err)
	require.ErrorIs(t, rt.Close(), ErrLeaked)
	require.Zero(t, o.Stats().PinnedBytes.Current)
	require.ErrorIs(t, o.Fetch(r.ctx, y), ErrClosed)
	_, err = NewOffloader(rt, OffloadConfig{})
	require.ErrorIs(t, err, ErrClosed)
}
