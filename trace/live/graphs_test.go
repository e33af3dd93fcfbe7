package live

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// TestGraphs: the index, the statistics and the heap have the memory of graphs.
func TestGraphs(t *testing.T) {
	s := newSite(t, Config{})
	s.alloc("embed", 3*mib)
	assert.Empty(t, s.embedded().State.GraphShares)
	pool, err := s.cache.NewPool(memcache.PoolOptions{})
	require.NoError(t, err)
	stream := s.stream.(device.GraphCapturer)
	require.NoError(t, stream.BeginCapture())
	ctx := memcache.WithCategory(memcache.WithModule(pool.Context(t.Context()), "head"), memcache.CategoryGradient)
	memory, err := s.cache.CaptureGraph(pool, func() error {
		b, err := s.cache.Alloc(ctx, 12*mib, s.stream)
		return errors.Join(err, b.Free())
	})
	require.NoError(t, err)
	g, err := stream.EndCapture()
	require.NoError(t, errors.Join(err, g.Close()))

	now := s.embedded().State
	assert.EqualValues(t, 12*mib, now.Graphs)
	assert.Equal(t, []graphShare{{"graph 1", memcache.Share{Name: "gradient", Blocks: 1, Bytes: 12 * mib}}}, now.GraphShares)
	var stats struct {
		Graphs graphs `json:"graphs"`
	}
	_, _, text := s.get("stats")
	require.NoError(t, json.Unmarshal(text, &stats))
	assert.Equal(t, graphs{Held: 12 * mib, Open: []graph{{Graph: 1, Pool: pool.ID(), Held: 12 * mib, Allocations: 1,
		Categories: []memcache.Share{{Name: "gradient", Blocks: 1, Bytes: 12 * mib}},
		Modules:    []memcache.Share{{Name: "head", Blocks: 1, Bytes: 12 * mib}}}}}, stats.Graphs)
	_, _, file := s.get("heap")
	assert.EqualValues(t, 15*mib, sums(t, file)["inuse_space"])

	memory.Close()
	assert.Equal(t, []graphShare{{"in no open graph's peak", memcache.Share{Name: "other", Blocks: 1, Bytes: 12 * mib}}}, s.embedded().State.GraphShares)
	require.NoError(t, pool.Release())
	assert.Zero(t, s.embedded().State.Graphs)
}
