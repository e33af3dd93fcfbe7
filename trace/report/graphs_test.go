package report

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// capture captures a graph that holds blocks of 12 MiB for the modules at once, and none at its
// end.
func (l *ledger) capture(pool *memcache.Pool, modules ...string) *memcache.GraphMemory {
	l.t.Helper()
	stream := l.streams[0].(device.GraphCapturer)
	require.NoError(l.t, stream.BeginCapture())
	m, err := l.cache.CaptureGraph(pool, func() error {
		var blocks []memcache.Block
		for _, module := range modules {
			ctx := memcache.WithCategory(memcache.WithModule(pool.Context(l.t.Context()), module), memcache.CategoryActivation)
			b, err := l.cache.Alloc(ctx, 12<<20, l.streams[0])
			require.NoError(l.t, err)
			blocks = append(blocks, b)
		}
		for _, b := range blocks {
			require.NoError(l.t, b.Free())
		}
		return nil
	})
	require.NoError(l.t, err)
	g, err := stream.EndCapture()
	require.NoError(l.t, errors.Join(err, g.Close()))
	return m
}

// TestGraphsOnThePage: the page shows the memory of graphs as a moment of its own, by module and
// graph, on top and in the row of a step. It is not part of the free memory at the peak. Without
// graphs the page does not mention them.
func TestGraphsOnThePage(t *testing.T) {
	l := newLedger(t, memcache.Config{}, 1, everything)
	l.alloc(memcache.Label{Module: "embed", Category: memcache.CategoryParameter}, 20<<20, 0)
	before := l.report(Options{})
	require.Len(t, before.account.profiles, 2)
	pools := []*memcache.Pool{nil, nil}
	for i := range pools {
		var err error
		pools[i], err = l.cache.NewPool(memcache.PoolOptions{})
		require.NoError(t, err)
	}
	l.capture(pools[0], "a", "b")
	l.capture(pools[1], "a").Close()
	l.alloc(memcache.Label{Module: "head", Category: memcache.CategoryParameter}, 60<<20, 0)
	start := time.Now()
	l.free(l.alloc(memcache.Label{Module: "head", Category: memcache.CategoryGradient}, 2<<20, 0))
	step := trace.StepProfile{Step: 1, Start: start, HostTime: time.Since(start), GraphBytes: 36 << 20}
	r, err := FromCache(l.cache, []trace.StepProfile{step}, Options{})
	require.NoError(t, err)
	held := r.account.profiles[2]
	require.EqualValues(t, 36<<20, held.graphs)
	names := map[string]int64{}
	for _, h := range held.holdings {
		o := r.account.owners.list[h.owner]
		names[o.module+" "+o.tags] += h.bytes
	}
	require.Equal(t, map[string]int64{"a graph=1": 12 << 20, "b graph=1": 12 << 20, " graph=none": 12 << 20}, names)

	b := openPage(t, 1200, 900, before, r)
	require.False(t, browsertest.Eval[bool](b.Browser, `["figures", "moments", "status", "steps"].some((id) => document.getElementById(id).textContent.includes("graphs"))`))
	b.Run(choose("device", 1))
	require.EqualValues(t, 36<<20, b.headline("Held by graphs"))
	require.EqualValues(t, 18<<20, b.headline("Reserved and free at the peak"), "of the segment of the gradient")
	b.Run(`[...document.querySelectorAll("#moments button")].find((b) => b.textContent === "held by graphs").click()`)
	text, graph, table := b.held()
	require.Equal(t, []int64{36 << 20, 36 << 20, 36 << 20}, []int64{text, graph, table})
	require.Contains(t, browsertest.Eval[string](b.Browser, `document.getElementById("status").textContent`), "36.00 MiB of them held by graphs.")
	require.Contains(t, browsertest.Eval[string](b.Browser, `document.getElementById("holders").textContent`), "graph=1")
	require.EqualValues(t, 36<<20, browsertest.Eval[float64](b.Browser, `report.page.r.steps.columns.graphs[0]`))
	require.Contains(t, browsertest.Eval[string](b.Browser, `document.querySelector("#steps tbody tr").textContent`), "36.00 MiB")
	require.NoError(t, errors.Join(pools[0].Release(), pools[1].Release()))
}
