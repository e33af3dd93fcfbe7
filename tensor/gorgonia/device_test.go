package gorgonia_test

import (
	"context"
	"errors"
	"math"
	"math/bits"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia"
	"github.com/cistern-ml/cistern/transfer"
)

func TestNewDeviceEngine(t *testing.T) {
	_, err := gorgonia.NewDeviceEngine(nil)
	assert.ErrorIs(t, err, gorgonia.ErrInvalid)
	e := newDeviceEngine(t)
	assert.Same(t, e.rt, e.Runtime())
	assert.Same(t, e.cache, e.Cache())
	assert.Equal(t, e.stream.ID(), e.Stream().ID())
	assert.False(t, e.AllocAccessible())
	assert.True(t, e.WorksWith(g.ColMajor))
	d := g.New(g.WithEngine(e.DeviceEngine), g.Of(g.Float32), g.WithShape(200, 3))
	assert.EqualValues(t, 2560, e.cache.MemoryAllocated())
	assert.False(t, d.IsNativelyAccessible())
	assert.True(t, d.IsManuallyManaged())
	block, offset, err := e.Block(d)
	require.NoError(t, err)
	assert.EqualValues(t, d.Uintptr(), block.Ptr())
	assert.Zero(t, offset)
	assert.Equal(t, make([]float32, 600), get[float32](t, e, d), "new tensors are zero")
	require.NoError(t, e.Release(d))
	assert.Zero(t, e.cache.MemoryAllocated())
}

// TestNewMemoryIsZero reuses memory that has something else.
func TestNewMemoryIsZero(t *testing.T) {
	e := newDeviceEngine(t)
	d := put(t, e, count(100), 100)
	at := d.Uintptr()
	require.NoError(t, e.Release(d))
	d = g.New(g.WithEngine(e.DeviceEngine), g.Of(g.Float32), g.WithShape(100))
	require.Equal(t, at, d.Uintptr())
	assert.Equal(t, make([]float32, 100), get[float32](t, e, d))
	require.NoError(t, e.Release(d))
}

func TestOperationsDoNotWait(t *testing.T) {
	e := newDeviceEngine(t)
	dev, ok := e.dev.(*host.Device)
	if !ok {
		t.Skip("on the host device, whose kernels are Go functions")
	}
	lifetime := e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	d := put(t, e, count(6), 2, 3)
	require.NoError(t, e.Sync(background))
	gate := make(chan struct{})
	require.NoError(t, e.stream.Launch(&device.Launch{Name: "gate", Func: func() { <-gate }}))
	sum, err := g.Add(d, d)
	require.NoError(t, err)
	m, err := d.Max(1)
	require.NoError(t, err)
	reading, err := e.StartToHost(background, sum.(*g.Dense))
	require.NoError(t, err)
	require.NoError(t, e.Release(d), "work that is queued still finds it")
	ended, cancel := context.WithCancel(background)
	cancel()
	_, err = e.ToHost(ended, m)
	assert.ErrorIs(t, err, context.Canceled)
	_, err = reading.Wait(ended)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, e.Sync(ended), context.Canceled)
	_, err = e.FromHost(ended, g.New(g.WithBacking(count(3))))
	assert.ErrorIs(t, err, context.Canceled)
	close(gate)
	h, err := reading.Wait(background)
	require.NoError(t, err)
	assert.Equal(t, []float32{2, 4, 6, 8, 10, 12}, h.Data())
	assert.Equal(t, []float32{3, 6}, get[float32](t, e, m))
	_, err = reading.Wait(background)
	assert.ErrorIs(t, err, gorgonia.ErrReleased)
	_ = dev
}

func TestFromHostAndBack(t *testing.T) {
	e := newDeviceEngine(t)
	lifetime := e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	h := g.New(g.WithShape(4, 3), g.WithBacking(count(12)))
	d, err := e.FromHost(background, h)
	require.NoError(t, err)
	h.Zero() // it may be reused
	assert.Equal(t, count(12), get[float32](t, e, d))

	h = g.New(g.WithShape(4, 3), g.WithBacking(count(12)))
	v, err := h.Slice(nil, g.S(1, 3))
	require.NoError(t, err)
	d, err = e.FromHost(background, v.(*g.Dense))
	require.NoError(t, err)
	assert.Equal(t, []float32{2, 3, 5, 6, 8, 9, 11, 12}, get[float32](t, e, d))
	require.NoError(t, h.T())
	d, err = e.FromHost(background, h)
	require.NoError(t, err)
	assert.Equal(t, []float32{1, 4, 7, 10, 2, 5, 8, 11, 3, 6, 9, 12}, get[float32](t, e, d))
	back, err := e.ToHost(background, d)
	require.NoError(t, err)
	assert.True(t, back.IsNativelyAccessible())
	_, err = g.Add(back, back)
	require.NoError(t, err, "it is an ordinary tensor")

	columns := g.New(g.WithShape(2, 3), g.AsFortran([]float32{1, 2, 3, 4, 5, 6}))
	d, err = e.FromHost(background, columns)
	require.NoError(t, err)
	assert.Equal(t, count(6), get[float32](t, e, d))

	s, err := e.FromHost(background, g.New(g.FromScalar(float64(7))))
	require.NoError(t, err)
	assert.Equal(t, []float64{7}, get[float64](t, e, s))

	for _, refused := range []*g.Dense{d, g.New(g.WithBacking([]string{"a"})), g.New(g.WithBacking(count(2), []bool{true, false})), nil} {
		_, err = e.FromHost(background, refused)
		assert.Error(t, err)
	}
}

func TestCopyBothWays(t *testing.T) {
	e := newDeviceEngine(t)
	lifetime := e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	d := put(t, e, make([]float32, 12), 4, 3)
	v, err := d.Slice(g.S(1, 3), g.S(0, 2))
	require.NoError(t, err)
	window := v.(*g.Dense)
	require.NoError(t, e.Copy(background, window, g.New(g.WithShape(2, 2), g.WithBacking(count(4)))))
	assert.Equal(t, []float32{0, 0, 0, 1, 2, 0, 3, 4, 0, 0, 0, 0}, get[float32](t, e, d))

	h := g.New(g.Of(g.Float32), g.WithShape(4, 3))
	hv, err := h.Slice(g.S(0, 2), g.S(1, 3))
	require.NoError(t, err)
	require.NoError(t, e.Copy(background, hv.(*g.Dense), window))
	assert.Equal(t, []float32{0, 1, 2, 0, 3, 4, 0, 0, 0, 0, 0, 0}, h.Data())

	// Within the engine, also where the two overlap.
	x := put(t, e, count(9), 3, 3)
	turned := x.ShallowClone()
	require.NoError(t, turned.T())
	require.NoError(t, e.Copy(background, x, turned))
	assert.Equal(t, []float32{1, 4, 7, 2, 5, 8, 3, 6, 9}, get[float32](t, e, x))

	assert.ErrorIs(t, e.Copy(background, d, x), gorgonia.ErrShape)
	assert.ErrorIs(t, e.Copy(background, x, put(t, e, make([]float64, 9), 3, 3)), gorgonia.ErrDtype)
	assert.ErrorIs(t, e.Copy(background, nil, x), gorgonia.ErrInvalid)
}

func TestOverlappingOperands(t *testing.T) {
	e := newDeviceEngine(t)
	lifetime := e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	for _, incr := range []bool{false, true} {
		x := put(t, e, count(9), 3, 3)
		turned := x.ShallowClone()
		require.NoError(t, turned.T())
		opt := g.WithReuse(x)
		want := []float32{2, 6, 10, 6, 10, 14, 10, 14, 18}
		if incr {
			opt = g.WithIncr(x)
			want = []float32{3, 8, 13, 10, 15, 20, 17, 22, 27}
		}
		_, err := g.Add(x, turned, opt)
		require.NoError(t, err)
		assert.Equal(t, want, get[float32](t, e, x))
	}
	x := put(t, e, count(9), 3, 3)
	column, err := x.Slice(nil, g.S(0))
	require.NoError(t, err)
	assert.ErrorIs(t, e.DeviceEngine.Outer(column, column, x), gorgonia.ErrInvalid)
}

func TestSharingFromATensor(t *testing.T) {
	e := newDeviceEngine(t)
	x, err := tensor.FromSlice(background, e.rt, count(6), 2, 3)
	require.NoError(t, err)
	held := e.cache.MemoryAllocated()
	d, err := e.FromTensor(x)
	require.NoError(t, err)
	assert.Equal(t, held, e.cache.MemoryAllocated(), "no copy")
	assert.EqualValues(t, x.Block().Ptr(), d.Uintptr())
	require.NoError(t, e.Memset(d, float32(4)))
	got, err := tensor.ToSlice[float32](background, x, nil)
	require.NoError(t, err)
	assert.Equal(t, []float32{4, 4, 4, 4, 4, 4}, got)
	_, err = g.Add(d, d, g.UseUnsafe())
	require.NoError(t, err)

	// A second handle, and one of a part, whose tensor goes first.
	rows, err := e.rt.Rows(background, x, 1, 2)
	require.NoError(t, err)
	part, err := e.FromTensor(rows)
	require.NoError(t, err)
	require.NoError(t, rows.Release())
	again, err := e.FromTensor(x)
	require.NoError(t, err)
	require.NoError(t, x.Release())
	assert.Equal(t, held, e.cache.MemoryAllocated(), "the memory stays")
	require.NoError(t, e.Release(d))
	assert.Equal(t, []float32{8, 8, 8}, get[float32](t, e, part))
	sum, err := e.Sum(again)
	require.NoError(t, err)
	assert.Equal(t, []float32{48}, get[float32](t, e, sum.(*g.Dense)))
	require.NoError(t, e.Release(again))
	require.NoError(t, e.Release(part))
	require.NoError(t, e.Release(sum.(*g.Dense)))
	assert.Zero(t, e.cache.MemoryAllocated())

	_, err = e.FromTensor(x)
	assert.ErrorIs(t, err, gorgonia.ErrReleased)
	_, err = e.FromTensor(nil)
	assert.ErrorIs(t, err, gorgonia.ErrInvalid)
	other := newDeviceEngine(t)
	foreign, err := other.rt.Zeros(background, g.Float32, 2)
	require.NoError(t, err)
	_, err = e.FromTensor(foreign)
	assert.ErrorIs(t, err, tensor.ErrRuntime)
	require.NoError(t, foreign.Release())
}

// TestSharingAPartFirst has the part of a block before the whole.
func TestSharingAPartFirst(t *testing.T) {
	e := newDeviceEngine(t)
	lifetime := e.NewLifetime()
	x, err := tensor.FromSlice(background, e.rt, count(12), 4, 3)
	require.NoError(t, err)
	rows, err := e.rt.Rows(background, x, 2, 4)
	require.NoError(t, err)
	part, err := e.FromTensor(rows)
	require.NoError(t, err)
	whole, err := e.FromTensor(x)
	require.NoError(t, err)
	require.NoError(t, x.Release())
	require.NoError(t, rows.Release())
	assert.Equal(t, count(12)[6:], get[float32](t, e, part))
	total, err := whole.Sum()
	require.NoError(t, err)
	assert.Equal(t, []float32{78}, get[float32](t, e, total))
	back, err := e.ToTensor(background, whole)
	require.NoError(t, err)
	require.NoError(t, lifetime.Close())
	assert.NotZero(t, e.cache.MemoryAllocated())
	got, err := tensor.ToSlice[float32](background, back, nil)
	require.NoError(t, err)
	assert.Equal(t, count(12), got)
	require.NoError(t, back.Release())
	assert.Zero(t, e.cache.MemoryAllocated())
}

func TestSharingWithATensor(t *testing.T) {
	e := newDeviceEngine(t)
	d := put(t, e, count(6), 2, 3)
	held := e.cache.MemoryAllocated()
	x, err := e.ToTensor(background, d)
	require.NoError(t, err)
	assert.Equal(t, held, e.cache.MemoryAllocated(), "no copy")
	assert.EqualValues(t, d.Uintptr(), x.Block().Ptr())
	require.NoError(t, e.Release(d))
	assert.Equal(t, held, e.cache.MemoryAllocated(), "the memory stays")
	y, err := e.rt.MatMul(background, x, x, tensor.TransB)
	require.NoError(t, err)
	got, err := tensor.ToSlice[float32](background, y, nil)
	require.NoError(t, err)
	assert.Equal(t, []float32{14, 32, 32, 77}, got)
	require.NoError(t, y.Release())
	require.NoError(t, x.Release())
	assert.Zero(t, e.cache.MemoryAllocated())

	lifetime := e.NewLifetime()
	d = put(t, e, count(6), 2, 3)
	v, err := d.Slice(g.S(1), nil)
	require.NoError(t, err)
	x, err = e.ToTensor(background, v.(*g.Dense))
	require.NoError(t, err)
	assert.EqualValues(t, 12, x.Offset())
	require.NoError(t, lifetime.Close())
	got, err = tensor.ToSlice[float32](background, x, nil)
	require.NoError(t, err)
	assert.Equal(t, []float32{4, 5, 6}, got, "after the tensor's lifetime")
	require.NoError(t, x.Release())

	lifetime = e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	d = put(t, e, count(6), 2, 3)
	v, err = d.Slice(nil, g.S(0, 2))
	require.NoError(t, err)
	_, err = e.ToTensor(background, v.(*g.Dense))
	assert.ErrorIs(t, err, gorgonia.ErrUnsupported)
	_, err = e.ToTensor(background, put(t, e, []int16{1}, 1))
	assert.ErrorIs(t, err, gorgonia.ErrDtype)
	for _, same := range []struct {
		d  *g.Dense
		dt g.Dtype
	}{{put(t, e, []bool{true, false}, 2), g.Uint8}, {put(t, e, []int{7, 9}, 2), g.Int64}} {
		x, err := e.ToTensor(background, same.d)
		require.NoError(t, err)
		assert.Equal(t, same.dt, x.Dtype())
		require.NoError(t, x.Release())
	}
}

func TestSharingABorrowedBlock(t *testing.T) {
	e := newDeviceEngine(t)
	block, err := e.cache.Alloc(background, 24, e.stream)
	require.NoError(t, err)
	x, err := e.rt.FromBlock(block, g.Float32, 2, 3)
	require.NoError(t, err)
	d, err := e.FromTensor(x)
	require.NoError(t, err)
	require.NoError(t, e.Memset(d, float32(2)))
	assert.Equal(t, []float32{2, 2, 2, 2, 2, 2}, get[float32](t, e, d))
	require.NoError(t, e.Release(d))
	require.NoError(t, x.Release())
	assert.NotZero(t, e.cache.MemoryAllocated(), "the block is its owner's")
	require.NoError(t, block.Free())
}

func TestLifetimesOfADevice(t *testing.T) {
	e := newDeviceEngine(t)
	outer := e.NewLifetime()
	a := put(t, e, count(6), 2, 3)
	inner := e.NewLifetime()
	sum, err := g.Add(a, a)
	require.NoError(t, err)
	kept, err := g.Mul(sum, a)
	require.NoError(t, err)
	require.NoError(t, inner.Keep(kept.(*g.Dense)))
	require.NoError(t, inner.Close())
	assert.Equal(t, []float32{2, 8, 18, 32, 50, 72}, get[float32](t, e, kept.(*g.Dense)))
	_, err = g.Add(sum, sum)
	assert.ErrorIs(t, err, gorgonia.ErrForeign, "freed with the inner lifetime")
	view, err := e.View(a, g.S(1))
	require.NoError(t, err)
	require.NoError(t, outer.Keep(view))
	require.NoError(t, outer.Close())
	assert.Equal(t, []float32{4, 5, 6}, get[float32](t, e, view), "a view keeps the memory")
	require.NoError(t, e.Release(view))
	assert.Zero(t, e.cache.MemoryAllocated())
}

func TestCloseOfADeviceEngine(t *testing.T) {
	e := newDeviceEngine(t)
	a := put(t, e, count(4), 4)
	shared, err := e.ToTensor(background, a)
	require.NoError(t, err)
	err = e.DeviceEngine.Close()
	assert.ErrorIs(t, err, gorgonia.ErrLeaked)
	assert.ErrorContains(t, err, "1 gorgonia tensors of 512 B")
	if invariants.Enabled {
		assert.ErrorContains(t, err, "device_rig_test.go:")
	}
	require.NoError(t, e.DeviceEngine.Close())
	got, err := tensor.ToSlice[float32](background, shared, nil)
	require.NoError(t, err)
	assert.Equal(t, count(4), got, "a tensor that shares the memory keeps it")
	require.NoError(t, shared.Release())
	errs := map[string]error{}
	_, errs["New"] = e.New(g.Of(g.Float32), g.WithShape(2))
	_, errs["Add"] = g.Add(a, a)
	_, errs["Alloc"] = e.Alloc(4)
	_, errs["ToHost"] = e.ToHost(background, a)
	_, errs["FromHost"] = e.FromHost(background, g.New(g.WithBacking(count(2))))
	_, errs["FromTensor"] = e.FromTensor(shared)
	errs["Memset"] = e.Memset(a, float32(1))
	errs["Memcpy"] = e.Memcpy(a, a)
	errs["Transpose"] = e.Transpose(a, nil)
	errs["Do"] = e.Do(func() error { a.Clone(); return nil })
	for name, err := range errs {
		assert.ErrorIs(t, err, gorgonia.ErrClosed, name)
	}
}

func TestForeignOperands(t *testing.T) {
	e, other := newDeviceEngine(t), newDeviceEngine(t)
	a, b := put(t, e, count(6), 2, 3), put(t, other, count(6), 2, 3)
	onHost := g.New(g.WithShape(2, 3), g.WithBacking(count(6)))
	held := e.cache.MemoryAllocated()
	for name, operand := range map[string]*g.Dense{"another engine's": b, "in Go memory": onHost} {
		_, err := g.Add(a, operand)
		assert.ErrorIs(t, err, gorgonia.ErrForeign, name)
		_, err = g.Add(a, a, g.WithReuse(operand))
		assert.ErrorIs(t, err, gorgonia.ErrForeign, name)
		_, err = a.MatMul(operand)
		assert.Error(t, err, name)
		_, err = g.Concat(0, a, operand)
		assert.ErrorIs(t, err, gorgonia.ErrForeign, name)
	}
	require.NoError(t, e.Release(a))
	_, err := g.Add(a, a)
	assert.ErrorIs(t, err, gorgonia.ErrReleased)
	_, err = e.DeviceEngine.Add(nil, a)
	assert.Error(t, err)
	_, err = e.DeviceEngine.Add((*g.Dense)(nil), a)
	assert.ErrorIs(t, err, gorgonia.ErrInvalid)
	assert.LessOrEqual(t, e.cache.MemoryAllocated(), held)
	assert.ErrorIs(t, e.Release(b), gorgonia.ErrForeign)
	require.NoError(t, other.Release(b))
}

// TestCopiesBetweenEngines has two engines with streams of their own on one device.
func TestCopiesBetweenEngines(t *testing.T) {
	e := newDeviceEngine(t)
	other := openDeviceEngine(t, e.dev)
	defer other.close(t)
	a := put(t, e, count(6), 2, 3)
	b := put(t, other, make([]float32, 6), 2, 3)
	for range 20 { // the race detector sees if an order is missing
		_, err := g.Add(a, a, g.UseUnsafe())
		require.NoError(t, err)
		require.NoError(t, g.Copy(b, a))
		_, err = g.Div(a, float32(2), g.UseUnsafe())
		require.NoError(t, err)
		_, err = g.Add(b, b, g.UseUnsafe())
		require.NoError(t, err)
	}
	assert.Equal(t, []float32{4, 8, 12, 16, 20, 24}, get[float32](t, other, b))

	away := newDeviceEngine(t)
	c := put(t, away, count(6), 2, 3)
	if away.dev.ID() != e.dev.ID() {
		err := e.Do(func() error { return g.Copy(a, c) })
		assert.ErrorIs(t, err, gorgonia.ErrForeign)
		var memory *gorgonia.MemoryError
		assert.ErrorAs(t, err, &memory)
	}
	require.NoError(t, away.Release(c))
	require.NoError(t, e.Release(a))
	require.NoError(t, other.Release(b))
}

func TestMemoryOfADevice(t *testing.T) {
	e := newDeviceEngine(t)
	m, err := e.Alloc(64)
	require.NoError(t, err)
	require.NoError(t, e.Memset(m, uint16(0x0102)))
	back := make([]byte, 64)
	h := g.New(g.WithBacking(back))
	require.NoError(t, e.Memcpy(h, m))
	assert.Equal(t, []byte{2, 1, 2, 1}, back[:4])
	e.Memclr(m)
	require.NoError(t, e.Memcpy(h, m))
	assert.Equal(t, make([]byte, 64), back)
	assert.ErrorIs(t, e.Memset(m, "text"), gorgonia.ErrInvalid)
	assert.ErrorIs(t, e.Memset(m, [3]byte{}), gorgonia.ErrInvalid)
	assert.ErrorIs(t, e.Memset(h, byte(1)), gorgonia.ErrForeign)
	assert.Error(t, e.Memcpy(h, g.New(g.WithBacking(back))), "neither is the engine's")
	require.NoError(t, e.Free(m, 64))
	assert.ErrorIs(t, e.Free(m, 64), gorgonia.ErrForeign)
	assert.ErrorIs(t, e.Memset(m, byte(1)), gorgonia.ErrForeign)
	e.Memclr(m)
	_, err = e.New(g.Of(g.Float32), g.WithShape(2))
	assert.ErrorIs(t, err, gorgonia.ErrForeign, "Memclr's error")
	none, err := e.Alloc(0)
	require.NoError(t, err)
	require.NoError(t, e.Free(none, 0))
	_, err = e.Alloc(-1)
	assert.ErrorContains(t, err, "-1 bytes")
}

func TestOutOfDeviceMemory(t *testing.T) {
	e := newDeviceEngine(t)
	_, err := e.New(g.Of(g.Float32), g.WithShape(1<<26))
	assert.ErrorIs(t, err, memcache.ErrOutOfMemory)
	d, err := e.New(g.Of(g.Float32), g.WithShape(10<<20))
	require.NoError(t, err)
	held := e.cache.MemoryAllocated()
	_, err = g.Add(d, d)
	assert.ErrorIs(t, err, memcache.ErrOutOfMemory)
	assert.ErrorContains(t, err, "gorgonia: Add: ")
	err = e.Do(func() error { d.Clone(); return nil })
	assert.ErrorIs(t, err, memcache.ErrOutOfMemory)
	assert.Equal(t, held, e.cache.MemoryAllocated())
	require.NoError(t, e.Release(d))
}

func TestStickyErrorsOfADevice(t *testing.T) {
	if bits.UintSize < 64 {
		t.Skip("device engines need addresses of 64 bits")
	}
	dev, err := host.New(host.Config{Capacity: 64 << 20, Inaccessible: true})
	require.NoError(t, err)
	defer dev.Close()
	e := openDeviceEngine(t, dev)
	d := put(t, e, count(6), 2, 3)
	require.NoError(t, e.Sync(background))
	dev.Fail(host.FaultLaunch, 1)
	r, err := g.Exp(d)
	require.NoError(t, err, "it is found when its turn comes")
	assert.ErrorIs(t, e.Sync(background), device.ErrSticky)
	_, err = e.ToHost(background, r.(*g.Dense))
	assert.ErrorIs(t, err, device.ErrSticky)
	_, err = g.Add(d, d)
	assert.ErrorIs(t, err, device.ErrSticky)
	_ = e.DeviceEngine.Close()
	_ = e.rt.Close()
	_ = e.pool.Close()
	_ = e.stream.Close()
	_ = e.cache.Close()
}

// TestGoroutinesOnADevice have tensors of their own on one engine.
func TestGoroutinesOnADevice(t *testing.T) {
	e := newDeviceEngine(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 50 {
				d := put(t, e, []float64{float64(i), 2, 3, 4}, 2, 2)
				r, err := g.Mul(d, d)
				if !assert.NoError(t, err) {
					return
				}
				m, err := d.MatMul(d)
				assert.NoError(t, err)
				assert.Equal(t, []float64{float64(i * i), 4, 9, 16}, get[float64](t, e, r.(*g.Dense)))
				x, err := e.ToTensor(background, m)
				assert.NoError(t, err)
				assert.NoError(t, errors.Join(e.Release(d), e.Release(r.(*g.Dense)), e.Release(m), x.Release()))
			}
		})
	}
	wg.Wait()
	assert.Zero(t, e.cache.MemoryAllocated())
}

func TestSpecialNumbersOfADevice(t *testing.T) {
	e := newDeviceEngine(t)
	lifetime := e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	nan, inf := math.NaN(), math.Inf(1)
	d := put(t, e, []float64{1, nan, 3, -inf, inf, inf, 5, 5, -5}, 3, 3)
	at, err := d.Argmax(1)
	require.NoError(t, err)
	assert.Equal(t, []int{1, 1, 0}, get[int](t, e, at), "NaN, the first infinity, the first of equal ones")
	at, err = d.Argmin(1)
	require.NoError(t, err)
	assert.Equal(t, []int{1, 0, 2}, get[int](t, e, at))
	for _, f := range []func(*g.Dense, ...int) (*g.Dense, error){(*g.Dense).Min, (*g.Dense).Max} {
		r, err := f(d)
		require.NoError(t, err)
		assert.True(t, math.IsNaN(get[float64](t, e, r)[0]))
	}
	q, err := g.Div(put(t, e, []float64{1, -1, 0}, 3), put(t, e, []float64{0, 0, 0}, 3))
	require.NoError(t, err)
	got := get[float64](t, e, q.(*g.Dense))
	assert.Equal(t, []float64{inf, -inf}, got[:2])
	assert.True(t, math.IsNaN(got[2]))
	for _, f := range []func(g.Tensor, int, ...g.FuncOpt) (g.Tensor, error){g.SoftMax, g.LogSoftMax} {
		s, err := f(put(t, e, []float64{1, inf, 1, 1}, 2, 2), 1)
		require.NoError(t, err)
		got := get[float64](t, e, s.(*g.Dense))
		assert.True(t, math.IsNaN(got[0]) && math.IsNaN(got[1]))
		assert.Equal(t, got[2], got[3], "the other line is as it should be")
		assert.False(t, math.IsNaN(got[2]))
	}
}

func TestLogSoftMaxOfLargeNumbers(t *testing.T) {
	e := newDeviceEngine(t)
	lifetime := e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	s, err := g.LogSoftMax(put(t, e, []float32{1000, 1001, -1000, -1000}, 2, 2), 1)
	require.NoError(t, err)
	assert.InDeltaSlice(t, []float32{-1.3132617, -0.3132617, -math.Ln2, -math.Ln2}, get[float32](t, e, s.(*g.Dense)), 1e-5)
}

func TestMasks(t *testing.T) {
	e := newDeviceEngine(t)
	d := put(t, e, count(3), 3)
	require.NoError(t, d.ResetMask(true))
	_, err := g.Add(d, d)
	assert.ErrorIs(t, err, gorgonia.ErrUnsupported)
	assert.ErrorContains(t, err, "mask")
	_, err = e.New(g.WithShape(2), g.WithBacking(count(2), []bool{true, false}))
	assert.ErrorIs(t, err, gorgonia.ErrUnsupported)
	require.NoError(t, e.Release(d))
}

func TestLargeOperandsOnADevice(t *testing.T) {
	e := newDeviceEngine(t)
	lifetime := e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	const rows, cols = 300, 700 // more than one block of threads for each line
	data := make([]float32, rows*cols)
	for i := range data {
		data[i] = float32((i*7919 + 13) % 10007)
	}
	std := g.New(g.WithShape(rows, cols), g.WithBacking(data))
	d, err := e.FromHost(background, std)
	require.NoError(t, err)
	for axis := -1; axis < 2; axis++ {
		want, err := std.Argmax(axis)
		require.NoError(t, err)
		at, err := d.Argmax(axis)
		require.NoError(t, err)
		assert.Equal(t, values(t, want), values(t, e.open(t, at)), axis)
	}
	most, err := d.Max()
	require.NoError(t, err)
	assert.Equal(t, []float32{10006}, get[float32](t, e, most))
	least, err := d.Min(0)
	require.NoError(t, err)
	want, err := std.Min(0)
	require.NoError(t, err)
	assert.Equal(t, want.Data(), get[float32](t, e, least))
	turned := d.ShallowClone()
	require.NoError(t, turned.T())
	sum, err := g.Add(turned, turned)
	require.NoError(t, err)
	got := get[float32](t, e, sum.(*g.Dense))
	for _, i := range []int{0, 1, rows - 1, rows, rows*cols - 1} {
		assert.Equal(t, 2*data[i%rows*cols+i/rows], got[i])
	}
}

func TestManyDimensions(t *testing.T) {
	e := newDeviceEngine(t)
	lifetime := e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	shape := []int{2, 2, 2, 2, 2, 2, 2, 2, 2, 2}
	d := put(t, e, count(1024), shape...)
	sum, err := g.Add(d, d)
	require.NoError(t, err, "dense operands have one dimension")
	require.NoError(t, e.Release(sum.(*g.Dense)))
	turned := d.ShallowClone()
	require.NoError(t, turned.T())
	held := e.cache.MemoryAllocated()
	_, err = g.Add(d, turned)
	assert.ErrorContains(t, err, "more than 8 dimensions")
	assert.Equal(t, held, e.cache.MemoryAllocated())
}

func TestDevicesWithoutKernels(t *testing.T) {
	dev, err := null.New(null.Config{Capacity: 1 << 20})
	require.NoError(t, err)
	defer dev.Close()
	stream, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	defer cache.Close()
	pool, err := transfer.New(dev, transfer.Config{})
	require.NoError(t, err)
	defer pool.Close()
	_, err = tensor.NewRuntime(cache, pool, stream)
	assert.ErrorIs(t, err, tensor.ErrUnsupported, "so there is no engine on it")
}
