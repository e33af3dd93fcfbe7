// Package tapetest has helpers for tests of package autograd and of the packages below it: a device
// with a runtime ([Bench]), models, ranks, and a device that runs nothing.
package tapetest

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/ptxfiles"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Main runs the tests of a package. It loads the kernels of simulated GPUs, which builds without
// tags do not embed, from the repository with this root.
func Main(m *testing.M, root string) {
	if ptxfiles.Tensor == nil {
		ptxfiles.Tensor = os.DirFS(root + "/tensor/internal/ptx")
	}
	cisterntest.Main(m)
}

// Rounds returns the repetitions of a test: full for statistical power, and short with -short,
// which still reaches each code path.
func Rounds(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// Bench is a device with a stack and a runtime. The end of the test checks that nothing leaked.
type Bench struct {
	T     testing.TB
	Ctx   context.Context
	Dev   device.Device
	Cache *memcache.Cache
	RT    *tensor.Runtime

	Shared bool // others use the runtime as well

	// The runtime's own memory: a GPU's workspace of matrix products.
	ownBlocks, OwnBytes int64
}

// Open makes a bench with a host device, or the device in CISTERN_TEST_DEVICE, of this capacity.
func Open(t testing.TB, capacity int64) *Bench {
	t.Helper()
	return OpenObserved(t, capacity, nil)
}

// OpenObserved is Open with an observer of the cache.
func OpenObserved(t testing.TB, capacity int64, observer memcache.Observer) *Bench {
	t.Helper()
	return OpenConfigured(t, capacity, memcache.Config{Observer: observer})
}

// OpenConfigured is Open with a configured cache.
func OpenConfigured(t testing.TB, capacity int64, cfg memcache.Config) *Bench {
	t.Helper()
	s := stacktest.New(t, stacktest.Config{Capacity: capacity, Workspace: true, Cache: cfg})
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	b := &Bench{T: t, Ctx: context.Background(), Dev: s.Dev, Cache: s.Cache, RT: rt}
	b.warmUp()
	t.Cleanup(func() {
		assert.NoError(t, rt.Close())
		assert.Zero(t, s.Cache.Stats().Allocation.All.Current, "live blocks")
	})
	return b
}

// warmUp makes the runtime allocate its own memory, and leaves nothing else. On a host
// device the runtime allocates none. That is not checked each time, because the check takes longer
// than many tests.
func (b *Bench) warmUp() {
	if _, ok := b.Dev.(*host.Device); ok && hostTakesNothing.Load() {
		return
	}
	x, err := b.RT.Zeros(b.Ctx, tensor.Float64, 1, 1) // a small product of float32 takes none
	require.NoError(b.T, err)
	many, err := b.RT.Zeros(b.Ctx, tensor.Float32, 1<<16)
	require.NoError(b.T, err)
	sum, err := b.RT.Sum(b.Ctx, many) // in parts
	require.NoError(b.T, err)
	require.NoError(b.T, errors.Join(many.Release(), sum.Release()))
	y, err := b.RT.MatMul(b.Ctx, x, x)
	require.NoError(b.T, err)
	require.NoError(b.T, x.Release())
	require.NoError(b.T, y.Release())
	require.NoError(b.T, b.Cache.EmptyCache(b.Ctx))
	b.Cache.ResetPeakStats()
	s := b.Cache.Stats()
	b.ownBlocks, b.OwnBytes = s.Allocation.All.Current, s.AllocatedBytes.All.Current
	if _, ok := b.Dev.(*host.Device); ok {
		hostTakesNothing.Store(b.ownBlocks == 0)
	}
}

var hostTakesNothing atomic.Bool

// Live returns the number of blocks that are not the runtime's own.
func (b *Bench) Live() int64 { return b.Cache.Stats().Allocation.All.Current - b.ownBlocks }

// Bytes returns the bytes of the blocks of Live.
func (b *Bench) Bytes() int64 { return b.Cache.MemoryAllocated() - b.OwnBytes }

// NeedsHost skips a test that needs the host device.
func (b *Bench) NeedsHost(why string) {
	b.T.Helper()
	cisterntest.OnlyHost(b.T, b.Dev, why)
}

// Counting returns a runtime whose stream counts launches by name. The test's end closes it.
func (b *Bench) Counting(launches map[string]int) *tensor.Runtime {
	b.T.Helper()
	stream, err := b.Dev.NewStream(device.StreamOptions{Launching: func(_ device.Stream, name string) func(error) { launches[name]++; return nil }})
	require.NoError(b.T, err)
	rt, err := tensor.NewRuntime(b.Cache, b.RT.Pool(), stream)
	require.NoError(b.T, err)
	b.T.Cleanup(func() { require.NoError(b.T, rt.Close()) })
	return rt
}
