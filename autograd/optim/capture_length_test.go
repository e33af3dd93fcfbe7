package optim_test

import (
	"context"
	"errors"
	"flag"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

var (
	replays  = flag.Int("replays", 20_000, "how often TestGraphsLeaveNothing replays a captured step")
	captures = flag.Int("captures", 100, "how many graphs it captures and drops")
)

// TestGraphsLeaveNothing: after any number of replays, captures and drops of a step, neither the
// device's memory nor the Go heap has grown.
//
//	go test ./autograd -run TestGraphsLeaveNothing -v -replays 100000 -captures 1000
func TestGraphsLeaveNothing(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	model := nn.Sequential{in.Linear(20, 32), nn.ReLU{}, in.Linear(32, 10)}
	opt := nn.Own(in, optim.NewAdamW(nn.ParametersOf(model), optim.AdamConfig{LR: new(1e-3)}))
	require.NoError(t, in.Err())
	defer func() { require.NoError(t, in.Close()) }()
	require.NoError(t, opt.Prepare(b.Ctx))
	x, y := tapetest.Upload(b, make([]float32, 20*16), 16, 20), tapetest.Upload(b, make([]int32, 16), 16)
	defer func() { require.NoError(t, errors.Join(x.Release(), y.Release())) }()
	step := func(ctx context.Context) error {
		for _, tape := range in.Steps(1) {
			tape.SetContext(ctx)
			optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), opt)
		}
		return in.Err()
	}
	// held returns the device's free memory, the cache's memory, and the Go heap in use.
	held := func() (free, reserved, allocated, heap int64) {
		require.NoError(t, b.RT.Synchronize(b.Ctx))
		free, _, err := b.Dev.MemInfo()
		require.NoError(t, err)
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return free, b.Cache.MemoryReserved(), b.Cache.MemoryAllocated(), int64(m.HeapAlloc)
	}
	require.NoError(t, step(b.Ctx))
	flat := func(name string, n int, f func()) {
		var free, reserved, allocated, heap int64
		for i := range 10 {
			for range n / 10 {
				f()
			}
			nowFree, nowReserved, nowAllocated, nowHeap := held()
			if i == 0 { // memory that the driver, the cache and Go keep is allocated
				free, reserved, allocated, heap = nowFree, nowReserved, nowAllocated, nowHeap
			}
			done := (i + 1) * (n / 10)
			t.Logf("%d %s: %d bytes free, %d reserved, %d allocated, Go heap %d", done, name, nowFree, nowReserved, nowAllocated, nowHeap)
			require.GreaterOrEqual(t, nowFree, free, "the device's free memory after %d %s", done, name)
			require.Equal(t, reserved, nowReserved, "after %d %s", done, name)
			require.Equal(t, allocated, nowAllocated, "after %d %s", done, name)
			require.Less(t, nowHeap, heap+1<<20, "the Go heap after %d %s", done, name) // tables of 100 KiB may grow
		}
	}
	short := tapetest.Rounds(1, 40)
	graph, err := b.RT.Capture(b.Ctx, step)
	require.NoError(t, err)
	flat("replays", *replays/short, func() { require.NoError(t, graph.Replay(b.Ctx)) })
	flat("captures", max(50, *captures/short), func() {
		g, err := b.RT.Capture(b.Ctx, step)
		require.NoError(t, err)
		require.NoError(t, g.Replay(b.Ctx))
		require.NoError(t, g.Close())
	})
	require.NoError(t, graph.Close())
}
