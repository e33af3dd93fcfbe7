package gorgonia_test

import (
	"context"
	"errors"
	"math/bits"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia"
	"github.com/cistern-ml/cistern/transfer"
)

// deviceRig is a device engine with the runtime and the cache below it.
type deviceRig struct {
	*gorgonia.DeviceEngine
	rt     *tensor.Runtime
	cache  *memcache.Cache
	pool   *transfer.Pool
	stream device.Stream
	dev    device.Device
	own    int64 // bytes that the runtime keeps for itself: a GPU's workspace of matrix products
}

var background = context.Background()

// newDeviceEngine opens an engine on the device that CISTERN_TEST_DEVICE names, or on a host device
// whose memory is not accessible. At the end it checks that no memory is left.
func newDeviceEngine(t testing.TB) deviceRig {
	t.Helper()
	if bits.UintSize < 64 {
		t.Skip("device engines need addresses of 64 bits")
	}
	name := os.Getenv("CISTERN_TEST_DEVICE")
	if name == "" || name == "host" {
		name = "host?accessible=false&capacity=64MiB"
	}
	dev, err := device.Open(name)
	require.NoError(t, err)
	r := openDeviceEngine(t, dev)
	t.Cleanup(func() { r.close(t); assert.NoError(t, dev.Close()) })
	return r
}

// openDeviceEngine opens an engine with a cache of its own on a device.
func openDeviceEngine(t testing.TB, dev device.Device) deviceRig {
	t.Helper()
	config, err := memcache.ConfigFromEnv()
	require.NoError(t, err)
	config.MemoryLimit = 64 << 20
	var workspace int64
	if m, ok := dev.(device.MatrixMultiplier); ok {
		workspace, err = m.MatMulWorkspace()
		require.NoError(t, err)
		config.MemoryLimit += workspace
	}
	cache, err := memcache.New(dev, config)
	require.NoError(t, err)
	pool, err := transfer.New(dev, transfer.Config{})
	require.NoError(t, err)
	stream, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	rt, err := tensor.NewRuntime(cache, pool, stream)
	require.NoError(t, err)
	e, err := gorgonia.NewDeviceEngine(rt)
	require.NoError(t, err)
	r := deviceRig{e, rt, cache, pool, stream, dev, 0}
	if workspace > 0 { // the first product that is not tiny takes it
		d := put(t, r, make([]float64, 64*64), 64, 64)
		y, err := d.MatMul(d)
		require.NoError(t, err)
		require.NoError(t, errors.Join(r.Release(d), r.Release(y)))
		r.own = cache.MemoryAllocated()
		require.Equal(t, workspace, r.own)
	}
	return r
}

func (r deviceRig) close(t testing.TB) {
	_ = r.DeviceEngine.Close() // tests with leaks check the error themselves
	assert.NoError(t, r.rt.Close())
	assert.Zero(t, r.cache.MemoryAllocated())
	assert.NoError(t, r.pool.Close())
	assert.NoError(t, r.stream.Close())
	assert.NoError(t, r.cache.Close())
}

// put returns a tensor of the engine with a copy of data.
func put[T any](t testing.TB, r deviceRig, data []T, shape ...int) *g.Dense {
	t.Helper()
	d, err := r.New(g.WithShape(shape...), g.WithBacking(data))
	require.NoError(t, err)
	return d
}

// get returns the elements of a tensor of the engine, row-major.
func get[T any](t testing.TB, r deviceRig, d *g.Dense) []T {
	t.Helper()
	h, err := r.ToHost(background, d)
	require.NoError(t, err)
	if h.IsScalar() {
		return []T{h.ScalarValue().(T)}
	}
	return h.Data().([]T)
}

// engineUnderTest is an engine that is compared with StdEng. It can read and fill its tensors.
type engineUnderTest interface {
	New(...g.ConsOpt) (*g.Dense, error)
	NewLifetime() *gorgonia.Lifetime
	engine() g.Engine
	allocated() int64
	// open returns d, or the same layout and bytes in Go memory; shut sets d to that.
	open(t testing.TB, d *g.Dense) *g.Dense
	shut(t testing.TB, d, opened *g.Dense)
}

func (r rig) engine() g.Engine                          { return r.Engine }
func (r rig) allocated() int64                          { return r.cache.MemoryAllocated() }
func (r rig) open(_ testing.TB, d *g.Dense) *g.Dense    { return d }
func (r rig) shut(_ testing.TB, _ *g.Dense, _ *g.Dense) {}

func (r deviceRig) engine() g.Engine { return r.DeviceEngine }
func (r deviceRig) allocated() int64 { return r.cache.MemoryAllocated() - r.own }

// open reads the bytes in memory order, so that it shares no code with the engine.
func (r deviceRig) open(t testing.TB, d *g.Dense) *g.Dense {
	t.Helper()
	block, offset, err := r.Block(d)
	require.NoError(t, err)
	raw := make([]byte, len(d.Raw))
	require.NoError(t, r.pool.Download(background, r.stream, raw, block, offset))
	twin := d.ShallowClone()
	twin.Raw = raw
	return twin
}

func (r deviceRig) shut(t testing.TB, d, opened *g.Dense) {
	t.Helper()
	block, offset, err := r.Block(d)
	require.NoError(t, err)
	_, err = r.pool.Upload(background, r.stream, block, offset, opened.Raw)
	require.NoError(t, err)
}
