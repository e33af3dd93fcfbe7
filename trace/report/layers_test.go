package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
	"github.com/cistern-ml/cistern/memcache"
)

// TestLayersOfPage: a page of a cache or a recording has the layers and the limit of its options,
// more layers than it shows at first, and neither without them.
func TestLayersOfPage(t *testing.T) {
	o := Options{Limit: 3 << 20}
	for range 150 {
		o.Layers = append(o.Layers, Layer{Name: strings.Repeat("deep.", 20) + "x", Parameters: 2, WorkspaceBytes: 1 << 40})
	}
	const text = "{}\n[\"segment_alloc\",4096,2097152,0]\n[\"alloc\",4096,100,0]\n"
	read, err := Read(strings.NewReader(text), "file", o)
	require.NoError(t, err)
	plain, err := Read(strings.NewReader(text), "file", Options{})
	require.NoError(t, err)
	l := newLedger(t, memcache.Config{MemoryLimit: 64 << 20}, 1, everything)
	l.alloc(memcache.Label{}, 1000, 0)
	require.EqualValues(t, 64<<20, l.report(Options{}).account.limit)
	b := openPage(t, 900, 900, read[0], l.report(o), plain[0])
	for i := range 2 {
		b.Run(choose("device", i))
		require.EqualValues(t, o.Limit, b.headline("Limit"))
		require.EqualValues(t, o.Limit, browsertest.Eval[int64](b.Browser, `report.page.timeline.limit`))
		require.Equal(t, 100, browsertest.Eval[int](b.Browser, `document.querySelectorAll("#layers tbody tr").length`))
		require.Equal(t, "300", browsertest.Eval[string](b.Browser, `document.querySelector("#layers tfoot tr").cells[2].textContent`))
		require.Equal(t, int64(150<<40), browsertest.Eval[int64](b.Browser, `Number(document.querySelector("#layers tfoot tr").cells[7].querySelector("data").value)`))
	}
	b.Run(choose("device", 2))
	require.True(t, browsertest.Eval[bool](b.Browser, `document.getElementById("layers-section").hidden`))
	require.Zero(t, browsertest.Eval[int64](b.Browser, `report.page.timeline.limit`))
}
