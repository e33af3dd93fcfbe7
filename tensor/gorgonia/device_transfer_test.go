package gorgonia_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/tensor/gorgonia"
)

func TestOperationsDoNotWait(t *testing.T) {
	e := newDeviceEngine(t)
	if _, ok := e.dev.(*host.Device); !ok {
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

// TestCopiesBetweenEngines copies between two engines with streams of their own on one device.
func TestCopiesBetweenEngines(t *testing.T) {
	e := newDeviceEngine(t)
	other := openDeviceEngine(t, e.dev)
	defer other.close(t)
	a := put(t, e, count(6), 2, 3)
	b := put(t, other, make([]float32, 6), 2, 3)
	for range 20 { // the race detector reports a missing order
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

// TestCopiesBetweenBothKindsOfEngine copies through either of the engines that the library may
// call.
func TestCopiesBetweenBothKindsOfEngine(t *testing.T) {
	e, h := newDeviceEngine(t), newEngine(t, "host")
	d, onHost := put(t, e, make([]float32, 6), 2, 3), of(t, h, count(6), 2, 3)
	require.NoError(t, g.Copy(d, onHost))
	assert.Equal(t, count(6), get[float32](t, e, d))
	require.NoError(t, e.Memset(d, float32(7)))
	require.NoError(t, g.Copy(onHost, d))
	assert.Equal(t, []float32{7, 7, 7, 7, 7, 7}, onHost.Data())
	_, err := g.Add(onHost, d)
	assert.Error(t, err)
	_, err = g.Add(d, onHost)
	assert.ErrorIs(t, err, gorgonia.ErrForeign)
	require.NoError(t, e.Release(d))
	require.NoError(t, h.Release(onHost))
}
