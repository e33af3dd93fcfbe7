package gorgonia_test

import (
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
	assert.EqualValues(t, 2560, e.allocated())
	assert.False(t, d.IsNativelyAccessible())
	assert.True(t, d.IsManuallyManaged())
	block, offset, err := e.Block(d)
	require.NoError(t, err)
	assert.EqualValues(t, d.Uintptr(), block.Ptr())
	assert.Zero(t, offset)
	assert.Equal(t, make([]float32, 600), get[float32](t, e, d), "new tensors are zero")
	require.NoError(t, e.Release(d))
	assert.Zero(t, e.allocated())
}

// TestNewMemoryIsZero reuses memory with other contents.
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
	assert.Zero(t, e.allocated())
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
	held := e.allocated()
	for name, operand := range map[string]*g.Dense{"another engine's": b, "in Go memory": onHost} {
		_, err := g.Add(a, operand)
		assert.ErrorIs(t, err, gorgonia.ErrForeign, name)
		assert.ErrorContains(t, err, "has the engine", name)
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
	assert.LessOrEqual(t, e.allocated(), held)
	assert.ErrorIs(t, e.Release(b), gorgonia.ErrForeign)
	require.NoError(t, other.Release(b))
}

func TestOutOfDeviceMemory(t *testing.T) {
	e := newDeviceEngine(t)
	_, err := e.New(g.Of(g.Float32), g.WithShape(1<<26))
	assert.ErrorIs(t, err, memcache.ErrOutOfMemory)
	d, err := e.New(g.Of(g.Float32), g.WithShape(10<<20))
	require.NoError(t, err)
	held := e.allocated()
	_, err = g.Add(d, d)
	assert.ErrorIs(t, err, memcache.ErrOutOfMemory)
	assert.ErrorContains(t, err, "gorgonia: Add: ")
	err = e.Do(func() error { d.Clone(); return nil })
	assert.ErrorIs(t, err, memcache.ErrOutOfMemory)
	assert.Equal(t, held, e.allocated())
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

// TestGoroutinesOnADevice uses separate tensors on one engine.
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
	assert.Zero(t, e.allocated())
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
	held := e.allocated()
	_, err = g.Add(d, turned)
	assert.ErrorContains(t, err, "more than 8 dimensions")
	assert.Equal(t, held, e.allocated())
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
