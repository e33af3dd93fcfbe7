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

// TestGraphs: the index, the statistics and the heap have what graphs hold, and without graphs the
// index has no word of them.
func TestGraphs(t *testing.T) {
	s := newSite(t, Config{})
	s.alloc("embed", 3*mib)
	_, _, before := s.get("")
	require.NotContains(t, string(before), "held by graphs")
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

	row := func(name string) string {
		return "<tr><td>" + name + `</td><td title="12582912 bytes">12 MiB</td><td>1</td></tr>`
	}
	_, _, page := s.get("")
	assert.Contains(t, string(page), "<span><b>12 MiB</b> held by graphs</span>")
	assert.Contains(t, string(page), row("graph 1</td><td>gradient"))
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
	_, _, page = s.get("")
	assert.Contains(t, string(page), row("no open graph&#39;s peak</td><td>other"))
	require.NoError(t, pool.Release())
	_, _, page = s.get("")
	assert.NotContains(t, string(page), "held by graphs")
}
