package tensor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
)

// TestACaptureEntersItsPool: with Exact, no request checks pending frees while a captured function
// runs, or after it failed or panicked. Without Exact each request checks them.
func TestACaptureEntersItsPool(t *testing.T) {
	for _, exact := range []bool{true, false} {
		s := stacktest.New(t, stacktest.Config{Capacity: 64 << 20, Cache: memcache.Config{Exact: exact}})
		rt, err := NewRuntime(s.Cache, s.Pool, s.Stream)
		require.NoError(t, err)
		ctx := context.Background()
		home, err := s.Dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		side, err := s.Dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		// pending frees a block that waits for side, whose work is done, and reports whether the
		// next request of its stream gets its memory.
		reused := func() bool {
			b, err := s.Cache.Alloc(ctx, 3<<20, home)
			require.NoError(t, err)
			require.NoError(t, b.RecordStream(side))
			require.NoError(t, b.Free())
			require.NoError(t, side.Synchronize(ctx))
			next, err := s.Cache.Alloc(ctx, 3<<20, home)
			require.NoError(t, err)
			require.NoError(t, next.Free())
			return next.Ptr() == b.Ptr()
		}
		require.True(t, reused(), "without a capture")
		x, err := rt.Zeros(ctx, Float32, 4)
		require.NoError(t, err)
		inside := false
		step := func(ctx context.Context) error {
			inside = reused()
			return rt.MulScalarInPlace(ctx, x, 2)
		}
		graph, err := rt.Capture(ctx, step)
		require.NoError(t, err)
		assert.Equal(t, !exact, inside, "Exact: %v", exact)
		settle := func() { // waits for the pending frees, and checks them
			require.NoError(t, s.Cache.EmptyCache(ctx))
		}
		settle()
		assert.True(t, reused(), "after the capture")
		_, err = rt.Capture(ctx, func(context.Context) error { return assert.AnError })
		require.ErrorIs(t, err, assert.AnError)
		assert.True(t, reused(), "after a capture that has failed")
		assert.Panics(t, func() { _, _ = rt.Capture(ctx, func(context.Context) error { panic("f") }) })
		assert.True(t, reused(), "after a capture that has panicked")
		require.NoError(t, graph.Close())
		require.NoError(t, x.Release())
		require.NoError(t, rt.Close())
		require.NoError(t, home.Close())
		require.NoError(t, side.Close())
	}
}
