package tensor

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

// rig is a runtime and everything below it. Its cleanup checks that nothing leaked.
type rig struct {
	*Runtime
	t     testing.TB
	ctx   context.Context
	dev   device.Device
	cache *memcache.Cache
	leaky bool // the test leaks tensors
}

func newRig(t testing.TB, capacity int64, options ...Option) *rig {
	t.Helper()
	return newObservedRig(t, capacity, nil, options...)
}

func newObservedRig(t testing.TB, capacity int64, observer memcache.Observer, options ...Option) *rig {
	t.Helper()
	s := stacktest.New(t, stacktest.Config{Capacity: capacity, Cache: memcache.Config{Observer: observer}})
	rt, err := NewRuntime(s.Cache, s.Pool, s.Stream, options...)
	require.NoError(t, err)
	r := &rig{Runtime: rt, t: t, ctx: context.Background(), dev: s.Dev, cache: s.Cache}
	t.Cleanup(func() {
		if err := rt.Close(); !r.leaky {
			assert.NoError(t, err)
		}
		assert.Zero(t, s.Cache.Stats().Allocation.All.Current, "live blocks")
	})
	return r
}

// brief reports whether random cases are few and their arrays small: with -short, on the host
// device. With a GPU the sizes stay, because they select its kernels, and make emulate runs them
// with -short.
func brief() bool {
	name := cisterntest.Named()
	return testing.Short() && (name == "" || strings.HasPrefix(name, "host"))
}

// rounds returns how often a test repeats its body: full times, or short times with -short, which
// still reaches every case.
func rounds(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// needsHost skips a test that only the host device can run.
func (r *rig) needsHost(why string) *host.Device {
	r.t.Helper()
	return cisterntest.OnlyHost(r.t, r.dev, why)
}

// scoped gives the rig's context a scope that ends with the test.
func (r *rig) scoped() *rig {
	ctx, life := WithLifetime(r.ctx)
	r.ctx = ctx
	r.t.Cleanup(func() { assert.NoError(r.t, life.Close()) })
	return r
}

// counting returns the rig with a stream that counts launches by name.
func (r *rig) counting(launches map[string]int) *rig {
	r.t.Helper()
	stream, err := r.dev.NewStream(device.StreamOptions{Launching: func(_ device.Stream, name string) func(error) { launches[name]++; return nil }})
	require.NoError(r.t, err)
	return r.on(stream)
}

// on returns the rig with a runtime on another stream.
func (r *rig) on(stream device.Stream) *rig {
	r.t.Helper()
	rt, err := NewRuntime(r.cache, r.Pool(), stream)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, rt.Close()) })
	other := *r
	other.Runtime = rt
	return &other
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

func (t *Tensor) memory() device.Range { return device.Range{Ptr: t.ptr(), Bytes: t.bytes} }
