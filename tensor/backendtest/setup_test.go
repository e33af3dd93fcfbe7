package backendtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/tensor"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

// newRig is on the device that CISTERN_TEST_DEVICE names, or the host. Its cleanup checks that
// nothing leaked.
func newRig(t testing.TB, capacity int64) *rig {
	t.Helper()
	s := stacktest.New(t, stacktest.Config{Capacity: capacity})
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, rt.Close())
		assert.Zero(t, s.Cache.Stats().Allocation.All.Current, "live blocks")
	})
	return &rig{Runtime: rt, t: t, ctx: context.Background()}
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
	r := newRig(t, 1<<30)
	r.w = watched(t, r.Runtime)
	if run(t, r) {
		r.complete(t)
	}
}
