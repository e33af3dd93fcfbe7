package transfer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

// rig is a host device with a cache, a pool and two streams. Its cleanup checks that nothing is left.
type rig struct {
	*stacktest.Stack // Faulted after a fault was injected
	dev              device.Device
	cache            *memcache.Cache
	pool             *transfer.Pool
	a, b             device.Stream
}

func newRig(t testing.TB, cfg transfer.Config) *rig {
	t.Helper()
	return rigOn(t, openDevice(t), cfg)
}

func rigOn(t testing.TB, dev device.Device, cfg transfer.Config) *rig {
	t.Helper()
	if _, ok := dev.(*sim); ok && race.Enabled {
		t.Skip("the detector does not see the locks of the simulated device")
	}
	s := stacktest.New(t, stacktest.Config{Device: dev, Pool: cfg})
	r := &rig{Stack: s, dev: dev, cache: s.Cache, pool: s.Pool, a: s.Stream}
	r.b = r.stream(t)
	t.Cleanup(func() { r.close(t) })
	return r
}

// openDevice opens the device that CISTERN_TEST_DEVICE names, or a host device.
func openDevice(t testing.TB) device.Device {
	t.Helper()
	return cisterntest.Open(t, 256<<20)
}

// host skips a test that only the host device can do: faults on demand, kernels in Go.
func (r *rig) host(t testing.TB) *host.Device {
	t.Helper()
	return cisterntest.OnlyHost(t, r.dev, "it fails on demand, and runs kernels in Go")
}

func (r *rig) stream(t testing.TB) device.Stream {
	return cisterntest.Stream(t, r.dev)
}

func (r *rig) close(t testing.TB) {
	// The pool is closed first, because it waits for its buffers' copies on both streams.
	if err := errors.Join(r.pool.Close(), r.b.Close()); !r.Faulted {
		require.NoError(t, err)
	}
}

func (r *rig) alloc(t testing.TB, bytes int64, s device.Stream) memcache.Block {
	t.Helper()
	b, err := r.cache.Alloc(t.Context(), bytes, s)
	require.NoError(t, err)
	return b
}

func (r *rig) get(t testing.TB, bytes int64) transfer.Buffer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	b, err := r.pool.Get(ctx, bytes)
	require.NoError(t, err)
	return b
}

func fill(b []byte, seed byte) []byte {
	have := min(len(b), 256) // the period
	for i := range b[:have] {
		b[i] = seed + byte(i)*31
	}
	for have > 0 && have < len(b) {
		have += copy(b[have:], b[:have])
	}
	return b
}
