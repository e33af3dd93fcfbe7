package tensor

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a runtime and everything below it. Its end checks that nothing leaked.
type rig struct {
	*Runtime
	t     testing.TB
	ctx   context.Context
	dev   device.Device
	cache *memcache.Cache
	leaky bool // the test leaves tensors behind
}

func newRig(t testing.TB, capacity int64, options ...Option) *rig {
	t.Helper()
	return newObservedRig(t, capacity, nil, options...)
}

func newObservedRig(t testing.TB, capacity int64, observer memcache.Observer, options ...Option) *rig {
	t.Helper()
	dev, config := openDevice(t, capacity)
	config.Observer = observer
	cache, err := memcache.New(dev, config)
	require.NoError(t, err)
	pool, err := transfer.New(dev, transfer.Config{})
	require.NoError(t, err)
	stream, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	rt, err := NewRuntime(cache, pool, stream, options...)
	require.NoError(t, err)
	r := &rig{Runtime: rt, t: t, ctx: context.Background(), dev: dev, cache: cache}
	t.Cleanup(func() {
		if err := rt.Close(); !r.leaky {
			assert.NoError(t, err)
		}
		assert.Zero(t, cache.Stats().Allocation.All.Current, "live blocks")
		assert.NoError(t, pool.Close())
		assert.NoError(t, stream.Close())
		assert.NoError(t, cache.Close())
		assert.NoError(t, dev.Close())
	})
	return r
}

// openDevice opens the device that CISTERN_TEST_DEVICE names, or a host device with so many bytes. Another device is
// limited to them by the cache.
func openDevice(t testing.TB, capacity int64) (device.Device, memcache.Config) {
	t.Helper()
	if name := os.Getenv("CISTERN_TEST_DEVICE"); name != "" {
		dev, err := device.Open(name)
		require.NoError(t, err)
		config, err := memcache.ConfigFromEnv() // such as NoCaching, for compute-sanitizer
		require.NoError(t, err)
		config.MemoryLimit = capacity
		return dev, config
	}
	dev, err := host.New(host.Config{Capacity: capacity})
	require.NoError(t, err)
	return dev, memcache.Config{}
}

// needsHost skips a test that only the host device can do.
func (r *rig) needsHost(why string) *host.Device {
	r.t.Helper()
	dev, ok := r.dev.(*host.Device)
	if !ok {
		r.t.Skip("only on the host device: " + why)
	}
	return dev
}

// scoped gives the rig's context a scope that ends with the test.
func (r *rig) scoped() *rig {
	ctx, life := WithLifetime(r.ctx)
	r.ctx = ctx
	r.t.Cleanup(func() { assert.NoError(r.t, life.Close()) })
	return r
}

func put[T Element](r *rig, data []T, shape ...int) *Tensor {
	r.t.Helper()
	x, err := FromSlice(r.ctx, r.Runtime, data, shape...)
	require.NoError(r.t, err)
	return x
}

func get[T Element](r *rig, x *Tensor, err error) []T {
	r.t.Helper()
	require.NoError(r.t, err)
	s, err := ToSlice[T](r.ctx, x, nil)
	require.NoError(r.t, err)
	return s
}
