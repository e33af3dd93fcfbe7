package live

import (
	"strconv"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
	"github.com/cistern-ml/cistern/trace"
)

// TestIndexInABrowser: steps that were and steps that end are shown, each once, the latest first, and the links lead somewhere.
func TestIndexInABrowser(t *testing.T) {
	browsertest.Program(t)
	s := newSite(t, Config{})
	s.alloc("0", 3*mib)
	for n := range int64(30) {
		s.Step(trace.StepProfile{Step: n + 1, AllocatedPeak: 5 * mib})
	}
	b := browsertest.Open(t, 400, 800, s.server.URL+Prefix, `document.querySelectorAll("#steps tr").length === 20`)
	s.Step(trace.StepProfile{Step: 31, AllocatedPeak: 7 * mib, Failed: true})
	b.Wait(`document.querySelector("#steps td").textContent === "31 failed"`)
	want := []string{"31 failed"}
	for n := 30; n > 11; n-- {
		want = append(want, strconv.Itoa(n))
	}
	require.Equal(t, want, browsertest.Eval[[]string](b, `[...document.querySelectorAll("#steps tr")].map(r => r.cells[0].textContent)`))
	require.Equal(t, "7.0 MiB", browsertest.Eval[string](b, `document.querySelector("#steps tr").cells[1].textContent`))
	require.Equal(t, "31 so far", browsertest.Eval[string](b, `document.getElementById("state").textContent`))
	require.LessOrEqual(t, browsertest.Eval[int](b, `document.documentElement.scrollWidth`), 400)
	for _, scheme := range []string{"light", "dark"} {
		b.Prefer(scheme)
		require.Equal(t, scheme == "dark", browsertest.Eval[bool](b, `matchMedia("(prefers-color-scheme: dark)").matches`))
	}
	b.Do(chromedp.Navigate(browsertest.Eval[string](b, `document.querySelector("a[href=report]").href`)))
	b.Wait(`document.querySelector("main.ready") !== null`)
	require.NoError(t, s.Close())
}
