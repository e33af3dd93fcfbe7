package loader_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

// rig is a device with a cache, a pool and two streams. Its cleanup checks that nothing is left.
type rig struct {
	dev   device.Device
	cache *memcache.Cache
	pool  *transfer.Pool
	a, b  device.Stream
}

func newRig(t testing.TB, cfg transfer.Config) *rig {
	t.Helper()
	return rigOn(t, cisterntest.Open(t, 256<<20), cfg)
}

func rigOn(t testing.TB, dev device.Device, cfg transfer.Config) *rig {
	t.Helper()
	s := stacktest.New(t, stacktest.Config{Device: dev, Pool: cfg})
	r := &rig{dev: dev, cache: s.Cache, pool: s.Pool, a: s.Stream, b: cisterntest.Stream(t, dev)}
	t.Cleanup(func() { require.NoError(t, errors.Join(r.pool.Close(), r.b.Close())) })
	return r
}

// host skips a test that only the host device can do.
func (r *rig) host(t testing.TB) {
	t.Helper()
	cisterntest.OnlyHost(t, r.dev, "its kernels are in Go")
}

func (r *rig) alloc(t testing.TB, bytes int64, s device.Stream) memcache.Block {
	t.Helper()
	b, err := r.cache.Alloc(t.Context(), bytes, s)
	require.NoError(t, err)
	return b
}
