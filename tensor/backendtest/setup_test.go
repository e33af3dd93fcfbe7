package backendtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/tensor"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

// newRig is on the device that CISTERN_TEST_DEVICE names, or the host. Its end checks that nothing
// leaked.
func newRig(t testing.TB, capacity int64) *rig {
	t.Helper()
	s := stacktest.New(t, stacktest.Config{Capacity: capacity})
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	return closing(t, s, &rig{Runtime: rt, t: t, ctx: context.Background()})
}

// newWatched is newRig with a watcher.
func newWatched(t testing.TB, capacity int64) *rig {
	t.Helper()
	s := stacktest.New(t, stacktest.Config{Capacity: capacity})
	name := "ptx"
	if _, ok := s.Dev.(device.HostVisible); ok {
		name = "host"
	}
	rt, w := watch(t, name, func(options ...tensor.Option) (*tensor.Runtime, error) {
		return tensor.NewRuntime(s.Cache, s.Pool, s.Stream, options...)
	})
	return closing(t, s, &rig{Runtime: rt, t: t, ctx: context.Background(), w: w})
}

func closing(t testing.TB, s *stacktest.Stack, r *rig) *rig {
	t.Cleanup(func() {
		assert.NoError(t, r.Close())
		assert.Zero(t, s.Cache.Stats().Allocation.All.Current, "live blocks")
	})
	return r
}

// scoped gives the rig's context a scope that ends with the test.
func (r *rig) scoped() *rig {
	ctx, life := tensor.WithLifetime(r.ctx)
	r.ctx = ctx
	r.t.Cleanup(func() { assert.NoError(r.t, life.Close()) })
	return r
}

// TestEveryOperation compares each operation of the module's own backends with package reference,
// on the device that the tests run on.
func TestEveryOperation(t *testing.T) {
	r := newWatched(t, 1<<30)
	if run(t, r) {
		r.complete(t)
	}
}
