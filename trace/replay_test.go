package trace

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// TestReplayedSteps: steps report the memory of their graphs in the profile, by category and module
// if the step reports the holders of its peak, on the span, and beneath the table.
func TestReplayedSteps(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{})
	holding := func(module string, c memcache.Category, bytes int64) memcache.Holding {
		return memcache.Holding{Label: memcache.Label{Module: module, Category: c}, Size: bytes, Blocks: 1, Bytes: bytes}
	}
	pool := &memcache.GraphPool{ID: memcache.PoolID{0, 3}}
	pool.Graphs.Store(2)
	pool.Reserved.Store(20 * mib)
	small := &memcache.GraphMemory{Number: 1, Held: mib, Allocations: 2, Holdings: []memcache.Holding{holding("", memcache.CategoryWorkspace, mib)}, Pool: pool}
	large := &memcache.GraphMemory{Number: 3, Held: 12 * mib, Allocations: 1500, Pool: pool,
		Holdings: []memcache.Holding{holding("0", memcache.CategoryActivation, 8*mib), holding("2", memcache.CategoryGradient, 4*mib)}}
	var last StepProfile
	for n := range int64(4) {
		ctx, step := p.StartStep(t.Context(), n+1)
		if n > 0 {
			f.cache.Replayed(ctx, small)
			f.cache.Replayed(ctx, large)
			f.cache.Replayed(ctx, small)
		}
		last = step.End()
		if n == 0 {
			require.Nil(t, last.Replays)
			assert.NotContains(t, last.attributes(nil), KeyStepReplays.Int64(0))
			continue
		}
		require.Len(t, last.Replays, 2)
		r := last.Replays[1]
		assert.Equal(t, []int64{1, 12 * mib, 1500, 2, 20 * mib}, []int64{r.Count, r.Held, r.Allocations, r.PoolGraphs, r.PoolReserved})
		assert.Equal(t, pool.ID, r.Pool)
		assert.EqualValues(t, 2, last.Replays[0].Count)
		assert.Equal(t, n == 1, r.Categories != nil, "the first two steps tell")
	}
	assert.Subset(t, last.attributes(nil), []attribute.KeyValue{KeyStepReplays.Int64(3), KeyStepReplayHeld.Int64(12 * mib),
		KeyStepReplayPoolGraphs.Int64(2), KeyStepReplayPoolReserved.Int64(20 * mib)})
	s := p.Summary()
	assert.EqualValues(t, 4, s.LastReplayed.Step)
	s.LastReplayed.ReplayedCollectives = []ReplayedCollective{{"all_reduce", 1, 2 * mib}, {"group", 1200, 3 * mib}}
	assert.Equal(t, []memcache.Share{{Name: "0", Blocks: 1, Bytes: 8 * mib}, {Name: "2", Blocks: 1, Bytes: 4 * mib}}, s.LastReplayed.Replays[1].Modules)
	var out strings.Builder
	require.NoError(t, s.Table(&out))
	assert.Contains(t, out.String(), `
replayed in step 4: 0 B allocated at the step's peak, 0 B held by graphs at its end
  graph 1, 2 blocks: 1.0 MiB at its peak, in private pool 3 of 20 MiB, shared with 1 other graph
  by category  workspace    1.0 MiB  100%  1 block
  graph 3, 1,500 blocks: 12 MiB at its peak, in private pool 3 of 20 MiB, shared with 1 other graph
  by category      activation    8.0 MiB   67%  1 block
                   gradient      4.0 MiB   33%  1 block
  largest modules  0             8.0 MiB   67%  1 block
                   2             4.0 MiB   33%  1 block
  1 collective operation all_reduce of 2.0 MiB in its graphs, without times
  1,200 collective operations group of 3.0 MiB in its graphs, without times
`)
}

// TestGraphsOfSteps: the memory of graphs is no part of a step's peak, and a separate figure in its
// profile, in the mean and in the table. Blocks that a capture has left allocated are in the peak.
func TestGraphsOfSteps(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Holders: true})
	var out strings.Builder
	_, step := p.StartStep(t.Context(), 1)
	require.Zero(t, step.End().GraphBytes)
	require.NoError(t, p.Table(&out))
	require.NotContains(t, out.String(), "graphs")

	pool, err := f.cache.NewPool(memcache.PoolOptions{})
	require.NoError(t, err)
	stream := f.stream.(device.GraphCapturer)
	require.NoError(t, stream.BeginCapture())
	var left memcache.Block
	memory, err := f.cache.CaptureGraph(pool, func() error {
		left = f.alloc(t, pool.Context(t.Context()), 2*mib)
		return f.alloc(t, pool.Context(t.Context()), 3*mib).Free()
	})
	require.NoError(t, err)
	g, err := stream.EndCapture()
	require.NoError(t, err)
	ctx, step := p.StartStep(t.Context(), 2)
	f.cache.Replayed(ctx, memory)
	require.NoError(t, f.alloc(t, ctx, 12*mib).Free())
	r := step.End()
	assert.Equal(t, []int64{14 * mib, 18 * mib, 32 * mib}, []int64{r.AllocatedPeak, r.GraphBytes, r.Reserved})
	assert.Equal(t, []int64{18 * mib, 0}, []int64{r.Peak.Graphs, r.Peak.Free})
	assert.EqualValues(t, 9*mib, p.Summary().Mean.GraphBytes)
	assert.Equal(t, []int64{1, 5 * mib}, []int64{int64(r.Replays[0].Graph), r.Replays[0].Held})
	out.Reset()
	require.NoError(t, p.Table(&out))
	assert.Regexp(t, `held by *\n.* graphs *\n(?s:.*)largest .* 18 MiB *\n *mean of .* 9.0 MiB *\n`, out.String())
	assert.Contains(t, out.String(), "at the peak of step 2: 14 MiB allocated, 18 MiB held by graphs, 0 B more reserved\n")
	assert.Contains(t, out.String(), "replayed in step 2: 14 MiB allocated at the step's peak, 18 MiB held by graphs at its end\n"+
		"  graph 1, 2 blocks: 5.0 MiB at its peak, in private pool 1 of 20 MiB, not shared\n")
	failed := f.profiler(t, ProfilerConfig{})
	_, step = failed.StartStep(t.Context(), 1)
	step.Fail(errors.New("on purpose"))
	step.End()
	out.Reset()
	require.NoError(t, failed.Table(&out))
	assert.Regexp(t, `failed .* 18 MiB *\n`, out.String(), "no other step has graphs")

	_, err = f.tracer.Watch(f.cache)
	require.NoError(t, err)
	states := map[string]int64{}
	for name, n := range points(t, f.collect(t)["cistern.device.memory.usage"]) {
		state, found := strings.CutSuffix(name, ","+large)
		if found {
			states[state] = n
		}
	}
	const state = "cistern.memory.state="
	assert.Equal(t, map[string]int64{state + "allocated": 2 * mib, state + "pending": 0, state + "split": 0, state + "cached": 12 * mib,
		state + "graph": 18 * mib}, states, "of a segment of 20 MiB with a block, and a free one")
	memory.Close()
	require.NoError(t, errors.Join(g.Close(), left.Free(), pool.Release()))
}
