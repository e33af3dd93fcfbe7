package trace

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/memcache"
)

// TestReplayedSteps say what their graphs hold: in the profile, by category and module where steps tell who holds their peak, on the span, and
// beneath the table.
func TestReplayedSteps(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{})
	holding := func(module string, c memcache.Category, bytes int64) memcache.Holding {
		return memcache.Holding{Label: memcache.Label{Module: module, Category: c}, Size: bytes, Blocks: 1, Bytes: bytes}
	}
	pool := &memcache.GraphPool{ID: memcache.PoolID{0, 3}}
	pool.Graphs.Store(2)
	pool.Reserved.Store(20 * mib)
	small := &memcache.GraphMemory{Held: mib, Allocations: 2, Holdings: []memcache.Holding{holding("", memcache.CategoryWorkspace, mib)}, Pool: pool}
	large := &memcache.GraphMemory{Held: 12 * mib, Allocations: 1500, Pool: pool,
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
replayed in step 4
  a graph of 2 blocks: 1.0 MiB at its peak, in the 20 MiB of private pool 3, which it has with 1 other graph
  by category  workspace    1.0 MiB  100%  1 block
  a graph of 1,500 blocks: 12 MiB at its peak, in the 20 MiB of private pool 3, which it has with 1 other graph
  by category      activation    8.0 MiB   67%  1 block
                   gradient      4.0 MiB   33%  1 block
  largest modules  0             8.0 MiB   67%  1 block
                   2             4.0 MiB   33%  1 block
  1 collective operation all_reduce of 2.0 MiB in its graphs, without times
  1,200 collective operations group of 3.0 MiB in its graphs, without times
`)
}
