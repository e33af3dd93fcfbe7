package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
)

// TestCapturedSteps compares the steps' figures of captured and replayed graphs with the
// allocations of the captured function: it holds two tensors of 1 MiB and one of 2 MiB at its peak,
// and leaves one of 1 MiB.
func TestCapturedSteps(t *testing.T) {
	b := tapetest.Open(t, 256*mib)
	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: b.Cache, Pool: b.RT.Pool(), Holders: true})
	require.NoError(t, err)
	in, err := tensor.FromSlice(b.Ctx, b.RT, make([]float32, mib/4))
	require.NoError(t, err)
	const word = 512 // that the graph's kernels report faults in; it is the runtime's
	before := b.Cache.MemoryAllocated()
	var left *tensor.Tensor
	capture := func(ctx context.Context) (g *tensor.Graph) {
		g, err := b.RT.Capture(ctx, func(ctx context.Context) error {
			x, err := b.RT.MulScalar(memcache.WithCategory(memcache.WithModule(ctx, "x"), memcache.CategoryActivation), in, 2)
			if err != nil {
				return err
			}
			y, err := b.RT.Mul(memcache.WithCategory(memcache.WithModule(ctx, "y"), memcache.CategoryGradient), x, x)
			if err != nil {
				return err
			}
			wide, err := b.RT.Cat(memcache.WithCategory(memcache.WithModule(ctx, "wide"), memcache.CategoryActivation), 0, x, y)
			if err != nil {
				return err
			}
			left = y
			return errors.Join(x.Release(), wide.Release())
		})
		require.NoError(t, err)
		return g
	}
	pool, err := b.Cache.NewPool(memcache.PoolOptions{})
	require.NoError(t, err)
	ctx, step := profiler.StartStep(b.Ctx, 1)
	g := capture(pool.Context(ctx))
	p := step.End()
	require.Empty(t, p.Replays, "a capture runs nothing")
	require.Equal(t, []int64{before, before + 4*mib + word, before + mib + word}, []int64{p.AllocatedStart, p.AllocatedPeak, p.AllocatedEnd})
	reserved := int64(0)
	for _, s := range pool.Snapshot() {
		reserved += s.TotalSize
	}
	for n := range int64(3) {
		ctx, step := profiler.StartStep(b.Ctx, n+2)
		for range n {
			require.NoError(t, g.Replay(ctx))
		}
		p := step.End()
		require.Equal(t, before+mib+word, p.AllocatedPeak, "a replay allocates nothing")
		require.Equal(t, reserved-mib, p.GraphBytes, "all of the pool except the tensor that is left")
		require.Equal(t, p.GraphBytes, p.Peak.Graphs)
		require.Equal(t, b.Cache.MemoryReserved()-p.AllocatedPeak-p.GraphBytes, p.Peak.Free)
		text, err := json.Marshal(p)
		require.NoError(t, err)
		got, want := figures{}, figures{}
		for name, v := range fromJSON(t, text) {
			if len(name) > 7 && name[:7] == "replays" {
				got[name] = v
			}
		}
		if n > 0 {
			for name, v := range (figures{"graph": 1, "count": n, "held": 4 * mib, "allocations": 3, "pool[0]": 0, "pool[1]": pool.ID()[1], "pool_graphs": 1, "pool_reserved": reserved}) {
				want["replays[0]."+name] = v
			}
			want.shares("replays[0].categories", []memcache.Share{{Name: "activation", Blocks: 2, Bytes: 3 * mib}, {Name: "gradient", Blocks: 1, Bytes: mib}})
			want.shares("replays[0].modules", []memcache.Share{{Name: "wide", Blocks: 1, Bytes: 2 * mib}, {Name: "x", Blocks: 1, Bytes: mib}, {Name: "y", Blocks: 1, Bytes: mib}})
		}
		requireTrue(t, "trace.StepProfile", got, want, "step ", n+2)
	}
	require.Equal(t, before+mib+word, b.Cache.MemoryAllocated())
	sums := map[string]int64{}
	for _, h := range b.Cache.GraphProfile().Holdings {
		sums[fmt.Sprint(h.Graph, " ", h.Label)] += h.Bytes
	}
	require.Equal(t, map[string]int64{"1 x (activation) in step 1": mib, "1 wide (activation) in step 1": 2 * mib, "0 other": reserved - 4*mib}, sums, "y is left")
	require.Equal(t, reserved-mib, b.Cache.Stats().GraphBytes.All)
	require.NoError(t, errors.Join(profiler.Close(), left.Release(), in.Release(), g.Close(), pool.Release()))
}
