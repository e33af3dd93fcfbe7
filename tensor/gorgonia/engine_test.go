package gorgonia_test

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/gorgonia"
)

type rig struct {
	*gorgonia.Engine
	cache  *memcache.Cache
	stream device.Stream
	dev    device.Device
}

// newEngine opens an engine with its cache and device. At the end it checks that no memory is left.
func newEngine(t testing.TB, name string) rig {
	t.Helper()
	e := openEngine(t, name)
	t.Cleanup(func() {
		_ = e.Close() // tests with leaks check the error themselves
		assert.Zero(t, e.cache.MemoryAllocated())
		assert.NoError(t, e.cache.Close())
		assert.NoError(t, e.stream.Close())
		assert.NoError(t, e.dev.Close())
	})
	return e
}

func openEngine(t testing.TB, name string) rig {
	t.Helper()
	dev, err := device.Open(name)
	require.NoError(t, err)
	stream, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	e, err := gorgonia.NewEngine(cache, stream)
	require.NoError(t, err)
	return rig{e, cache, stream, dev}
}

// of returns a tensor of the engine with the given elements.
func of[T any](t testing.TB, e rig, data []T, shape ...int) *gtensor.Dense {
	t.Helper()
	d, err := e.New(gtensor.WithShape(shape...), gtensor.WithBacking(data))
	require.NoError(t, err)
	return d
}

// count returns 1, 2, 3, ...
func count(n int) []float32 {
	f := make([]float32, n)
	for i := range f {
		f[i] = float32(i + 1)
	}
	return f
}

// rounded returns the bytes of the cache's block for a tensor.
func rounded(d *gtensor.Dense) int64 { return (int64(d.MemSize()) + 511) / 512 * 512 }

func TestNewTakesItsMemoryFromTheCache(t *testing.T) {
	e := newEngine(t, "host")
	d := gtensor.New(gtensor.WithEngine(e.Engine), gtensor.Of(gtensor.Float32), gtensor.WithShape(200, 3))
	assert.EqualValues(t, 2560, e.cache.MemoryAllocated())
	assert.True(t, d.IsNativelyAccessible())
	assert.True(t, d.IsManuallyManaged())
	block, offset, err := e.Block(d)
	require.NoError(t, err)
	assert.EqualValues(t, d.Uintptr(), block.Ptr())
	assert.Zero(t, offset)
	require.NoError(t, e.Release(d))
	assert.Zero(t, e.cache.MemoryAllocated())
}

func TestNewEngineRefuses(t *testing.T) {
	e := newEngine(t, "host")
	other := newEngine(t, "host")
	_, err := gorgonia.NewEngine(nil, e.stream)
	assert.ErrorIs(t, err, gorgonia.ErrInvalid)
	_, err = gorgonia.NewEngine(e.cache, nil)
	assert.ErrorIs(t, err, gorgonia.ErrInvalid)
	_, err = gorgonia.NewEngine(e.cache, other.stream)
	assert.ErrorContains(t, err, "belongs to device")
}

// blind is a device whose memory the host can't access.
type blind struct{ device.Device }

func TestNewEngineNeedsMemoryThatTheHostCanTouch(t *testing.T) {
	e := newEngine(t, "host")
	dev := blind{e.dev}
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	defer cache.Close()
	_, err = gorgonia.NewEngine(cache, blindStream{e.stream, dev})
	assert.ErrorContains(t, err, "the host can't touch the memory of host")
	assert.ErrorIs(t, err, gorgonia.ErrUnsupported)
}

func TestNewEngineRefusesInaccessibleMemory(t *testing.T) {
	if bits.UintSize < 64 {
		t.Skip("needs addresses of 64 bits")
	}
	dev, err := device.Open("host?accessible=false")
	require.NoError(t, err)
	defer dev.Close()
	stream, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	defer cache.Close()
	_, err = gorgonia.NewEngine(cache, stream)
	assert.ErrorIs(t, err, gorgonia.ErrUnsupported)
}

type blindStream struct {
	device.Stream
	dev device.Device
}

func (s blindStream) Device() device.Device { return s.dev }

func TestCloseReportsWhatIsLive(t *testing.T) {
	e := newEngine(t, "host")
	a := of(t, e, count(4), 4)
	b := of(t, e, count(300), 300)
	lifetime := e.NewLifetime()
	of(t, e, count(4), 4)
	require.NoError(t, e.Release(a))
	err := e.Close()
	assert.ErrorIs(t, err, gorgonia.ErrLeaked)
	assert.ErrorContains(t, err, "2 gorgonia tensors of 2.0 KiB")
	if invariants.Enabled {
		assert.ErrorContains(t, err, "engine_test.go:")
	}
	assert.Zero(t, e.cache.MemoryAllocated())
	assert.NoError(t, e.Close())
	assert.NoError(t, lifetime.Close())

	_, err = e.Add(b, b)
	assert.ErrorIs(t, err, gorgonia.ErrClosed)
	_, err = e.New(gtensor.Of(gtensor.Int), gtensor.WithShape(2))
	assert.ErrorIs(t, err, gorgonia.ErrClosed)
	for _, size := range []int64{0, 8} {
		_, err = e.Alloc(size)
		assert.ErrorIs(t, err, gorgonia.ErrClosed)
	}
	assert.NoError(t, e.NewLifetime().Close())
}

func TestEngineHasAllThatStdEngCan(t *testing.T) {
	var e any = (*gorgonia.Engine)(nil)
	_ = e.(interface {
		gtensor.Engine
		gtensor.NonStdEngine
		gtensor.Transposer
		gtensor.Concater
		gtensor.DenseStacker
		gtensor.Repeater
		gtensor.Diager
		gtensor.Adder
		gtensor.Suber
		gtensor.Muler
		gtensor.Diver
		gtensor.Power
		gtensor.Moder
		gtensor.MinBetweener
		gtensor.MaxBetweener
		gtensor.Tracer
		gtensor.FMAer
		gtensor.MatMuler
		gtensor.MatVecMuler
		gtensor.InnerProder
		gtensor.OuterProder
		gtensor.Dotter
		gtensor.SVDer
		gtensor.Lter
		gtensor.Lteer
		gtensor.Gter
		gtensor.Gteer
		gtensor.ElEqer
		gtensor.Mapper
		gtensor.Neger
		gtensor.Inver
		gtensor.Squarer
		gtensor.Cuber
		gtensor.Exper
		gtensor.Tanher
		gtensor.Loger
		gtensor.Log2er
		gtensor.Log10er
		gtensor.Sqrter
		gtensor.Cbrter
		gtensor.InvSqrter
		gtensor.Signer
		gtensor.Abser
		gtensor.Clamper
		gtensor.Reducer
		gtensor.OptimizedReducer
		gtensor.Sumer
		gtensor.Miner
		gtensor.Maxer
		gtensor.Argmaxer
		gtensor.Argminer
		gtensor.ByIndiceser
		gtensor.SoftMaxer
	})
}
