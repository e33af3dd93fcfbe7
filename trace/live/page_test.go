package live

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// shown returns the figures of the page, by their names: the headline and the tables of the memory
// in use.
const shown = `(() => {
	const all = {}, value = (e) => Number(e.querySelector("data").value);
	for (const d of document.querySelectorAll("#figures > div")) all[d.querySelector("dt").textContent] = value(d);
	for (const box of ["categories", "graphs"]) for (const r of document.querySelectorAll("#" + box + " tbody tr")) {
		const cells = [...r.cells], name = [box, ...cells.slice(0, -2).map((c) => c.textContent)].join(" ");
		[all[name + " bytes"], all[name + " blocks"]] = cells.slice(-2).map(value);
	}
	return all;
})()`

// figures returns those of the cache, under the names of the page.
func (s *site) figures() map[string]int64 {
	stats := s.cache.Stats()
	all := map[string]int64{"Allocated": stats.AllocatedBytes.All.Current, "At the peak": stats.AllocatedBytes.All.Peak, "Reserved": stats.ReservedBytes.All.Current,
		"Retries": stats.NumAllocRetries, "Out of memory": stats.NumOOMs}
	if n := stats.GraphBytes.All; n > 0 {
		all["Held by graphs"] = n
	}
	if n := s.cache.MemoryLimit(); n < s.cache.Device().Properties().TotalMemory {
		all["Limit"] = n
	}
	for _, h := range s.cache.Profile().Holdings {
		all["categories "+h.Category.String()+" bytes"] += h.Bytes
		all["categories "+h.Category.String()+" blocks"] += int64(h.Blocks)
	}
	for _, h := range s.cache.GraphProfile().Holdings {
		name := "graphs graph " + strconv.FormatUint(h.Graph, 10) + " " + h.Category.String()
		all[name+" bytes"] += h.Bytes
		all[name+" blocks"] += int64(h.Blocks)
	}
	return all
}

// capture returns a graph that uses a number of bytes, and the memory that it keeps.
func (s *site) capture(bytes int64) {
	s.t.Helper()
	pool, err := s.cache.NewPool(memcache.PoolOptions{})
	require.NoError(s.t, err)
	stream := s.stream.(device.GraphCapturer)
	require.NoError(s.t, stream.BeginCapture())
	ctx := memcache.WithCategory(pool.Context(s.t.Context()), memcache.CategoryGradient)
	memory, err := s.cache.CaptureGraph(pool, func() error {
		b, err := s.cache.Alloc(ctx, bytes, s.stream)
		return errors.Join(err, b.Free())
	})
	require.NoError(s.t, err)
	g, err := stream.EndCapture()
	require.NoError(s.t, errors.Join(err, g.Close()))
	s.t.Cleanup(func() {
		memory.Close()
		require.NoError(s.t, pool.Release())
	})
}

// TestFiguresMove: after each change of the cache every figure of the page, and the last point of
// its chart, become the cache's, and no screen reader announces them.
func TestFiguresMove(t *testing.T) {
	browsertest.Program(t)
	s := newSite(t, Config{})
	s.alloc("0", 3*mib)
	b := browsertest.Open(t, 390, 844, s.server.URL+Prefix, `document.getElementById("connection").textContent === "connected"`)
	b.Run(`window.said = 0; for (const e of document.querySelectorAll("[aria-live], [role=status], [role=alert], [role=log]")) new MutationObserver(() => said++).observe(e, { childList: true, characterData: true, subtree: true })`)
	step := int64(0)
	for _, c := range []struct {
		name   string
		change func()
	}{
		{"", func() {}},
		{"alloc", func() { s.alloc("1", 21*mib) }},
		{"small", func() { s.alloc("1", 700) }},
		{"free", s.free},
		{"limit", func() { require.NoError(t, s.cache.SetMemoryLimit(100*mib)) }},
		{"OOM", func() {
			_, err := s.cache.Alloc(t.Context(), 1<<40, s.stream)
			require.ErrorIs(t, err, memcache.ErrOutOfMemory)
		}},
		{"retry", func() {
			before := s.cache.Stats().NumAllocRetries
			s.alloc("2", 30*mib)
			s.free()
			limit := s.cache.MemoryLimit()
			require.NoError(t, s.cache.SetMemoryLimit(s.cache.MemoryReserved()+2*mib))
			s.alloc("2", 31*mib)
			require.NoError(t, s.cache.SetMemoryLimit(limit))
			require.Greater(t, s.cache.Stats().NumAllocRetries, before)
		}},
		{"graph", func() { s.capture(12 * mib) }},
		{"reset peaks", s.cache.ResetPeakStats},
	} {
		c.change()
		step++
		s.Step(trace.StepProfile{Step: step, Start: time.Now(), AllocatedPeak: step * mib})
		want := s.figures()
		got := func() map[string]int64 { return browsertest.Eval[map[string]int64](b, shown) }
		for end := time.Now().Add(20 * time.Second); !equal(want, got()) && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
		}
		require.Equal(t, want, got(), c.name)
		b.Wait(`document.querySelector("#steps td")?.textContent === "` + strconv.FormatInt(step, 10) + `"`)
		last := browsertest.Eval[[]float64](b, `live.series.map((s) => s.y.at(-1))`)
		require.Equal(t, []float64{float64(want["Allocated"]), float64(step * mib), float64(want["Reserved"])}, last, "the chart, after %s", c.name)
		require.Zero(t, browsertest.Eval[float64](b, `live.x.at(-1)`))
		limit := want["Limit"]
		if 2*want["Reserved"] < limit {
			limit = 0
		}
		require.Equal(t, limit, browsertest.Eval[int64](b, `live.limit`), "the chart's limit is shown when it is near")
	}
	require.Zero(t, browsertest.Eval[int](b, `said`), "figures are not announced")
	require.True(t, browsertest.Eval[bool](b, `(() => {
		const texts = new Map();
		for (const d of document.querySelectorAll("data[title]")) texts.set(d.value, (texts.get(d.value) ?? new Set()).add(d.textContent));
		return texts.size > 3 && [...texts.values()].every((t) => t.size === 1);
	})()`), "a figure has one text")
	require.LessOrEqual(t, browsertest.Eval[int](b, `document.documentElement.scrollWidth`), 390)
}

func equal(a, b map[string]int64) bool {
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return len(a) == len(b)
}

// TestStepsInABrowser: earlier steps and steps that end are shown, each once, the latest first, and
// a table's head keeps its focus. The links lead to pages.
func TestStepsInABrowser(t *testing.T) {
	browsertest.Program(t)
	s := newSite(t, Config{})
	start := time.Now().Add(-100 * time.Second)
	for n := range int64(30) {
		s.Step(trace.StepProfile{Step: n + 1, Start: start.Add(time.Duration(n) * time.Second), HostTime: time.Second / 4, AllocatedPeak: (n + 5) * mib, AllocatedEnd: mib})
	}
	b := browsertest.Open(t, 400, 800, s.server.URL+Prefix, `document.querySelectorAll("#steps tbody tr").length === 20`)
	peaks := browsertest.Eval[[]float64](b, `[...new Set(live.series[1].y)]`)
	require.Len(t, peaks, 30, "all that the server keeps are in the chart")
	require.Equal(t, []float64{5 * mib, 34 * mib}, []float64{peaks[0], peaks[29]})
	require.InDelta(t, -100, browsertest.Eval[float64](b, `live.x[0]`), 5)
	b.Run(`document.querySelectorAll("#steps th button")[1].focus(); window.head = document.activeElement`)
	s.Step(trace.StepProfile{Step: 31, Start: time.Now(), AllocatedPeak: 7 * mib, Failed: true, Rank: 1, WorldSize: 4})
	b.Wait(`document.querySelector("#steps td").textContent === "31 failed"`)
	require.True(t, browsertest.Eval[bool](b, `document.activeElement === head && head.isConnected`))
	want := []string{"31 failed"}
	for n := 30; n > 11; n-- {
		want = append(want, strconv.Itoa(n))
	}
	require.Equal(t, want, browsertest.Eval[[]string](b, `[...document.querySelectorAll("#steps tbody tr")].map(r => r.cells[0].textContent)`))
	require.Equal(t, "7.00 MiB", browsertest.Eval[string](b, `document.querySelector("#steps tbody tr").cells[1].textContent`))
	require.Equal(t, "31 so far", browsertest.Eval[string](b, `document.getElementById("count").textContent`))
	b.Wait(`document.title === "host, rank 1 of 4 – device memory" && document.querySelector("h1").textContent === document.title`)
	b.Do(chromedp.Focus(chromedp.ID("chart")))
	b.Keys(kb.Home)
	chosen := browsertest.Eval[[]any](b, `[live.chosen, live.name(live.chosen), document.getElementById("chart").ariaValueText]`)
	require.Contains(t, chosen[2], "peak of the latest step 5.00 MiB")
	time.Sleep(1200 * time.Millisecond)
	s.alloc("0", mib)
	b.Wait(`document.querySelector("#figures data").value === "1048576"`)
	require.Equal(t, chosen, browsertest.Eval[[]any](b, `[live.chosen, live.name(live.chosen), document.getElementById("chart").ariaValueText]`), "what is chosen stays chosen")
	b.Keys(kb.End)
	n := browsertest.Eval[int](b, `live.x.length`)
	s.alloc("0", mib)
	b.Wait(`live.x.length > ` + strconv.Itoa(n))
	require.Equal(t, "now", browsertest.Eval[string](b, `live.name(live.chosen)`), "however many points there are")
	b.Do(chromedp.Navigate(browsertest.Eval[string](b, `document.querySelector("a[href=report]").href`)))
	b.Wait(`document.querySelector("main.ready") !== null`)
	require.NoError(t, s.Close())
}

// TestChartIsBounded: of many steps the chart has those in the slots of the last five minutes, and
// the page the latest twenty.
func TestChartIsBounded(t *testing.T) {
	browsertest.Program(t)
	s := newSite(t, Config{Steps: 5000})
	b := browsertest.Open(t, 800, 800, s.server.URL+Prefix, `document.getElementById("connection").textContent === "connected"`)
	start := time.Now().Add(-1000 * time.Second)
	for n := range int64(5000) {
		s.Step(trace.StepProfile{Step: n, Start: start.Add(time.Duration(n) * 200 * time.Millisecond), HostTime: time.Millisecond, AllocatedPeak: n * mib, AllocatedEnd: n})
	}
	b.Wait(`document.querySelector("#steps td")?.textContent === "4,999"`)
	require.LessOrEqual(t, browsertest.Eval[int](b, `live.x.length`), 902)
	require.GreaterOrEqual(t, browsertest.Eval[float64](b, `live.x[0]`), -301.0)
	require.Equal(t, 20, browsertest.Eval[int](b, `document.querySelectorAll("#steps tbody tr").length`))
	require.EqualValues(t, int64(4999)*mib, browsertest.Eval[int64](b, `live.series[1].y.at(-1)`))
	require.True(t, browsertest.Eval[bool](b, `live.x.every((x, i) => i === 0 || x >= live.x[i - 1])`))
}

// TestChartHolds: a slot shows its largest values, and after it the last values hold until the next
// slot.
func TestChartHolds(t *testing.T) {
	browsertest.Program(t)
	s := newSite(t, Config{})
	slot := time.Now().Add(-50 * time.Second).Truncate(time.Second / 2)
	for i, end := range []int64{3, 9, 1} {
		s.Step(trace.StepProfile{Step: int64(i), Start: slot.Add(time.Duration(i) * 100 * time.Millisecond), AllocatedEnd: end * mib})
	}
	b := browsertest.Open(t, 800, 800, s.server.URL+Prefix, `document.querySelectorAll("#steps tbody tr").length === 3`)
	points := browsertest.Eval[[][2]float64](b, `live.x.map((x, i) => [x, live.series[0].y[i]])`)
	require.GreaterOrEqual(t, len(points), 4)
	require.Equal(t, []float64{9 * mib, mib, mib, 0}, []float64{points[0][1], points[1][1], points[2][1], points[3][1]})
	require.InDelta(t, 0.5, points[1][0]-points[0][0], 0.01)
	require.InDelta(t, 49, points[2][0]-points[1][0], 5)
	require.LessOrEqual(t, points[3][0]-points[2][0], 0.51)
}
