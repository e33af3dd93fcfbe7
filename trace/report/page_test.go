package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
	"github.com/cistern-ml/cistern/memcache"
)

// readFile reads a recording of another package's testdata.
func readFile(t testing.TB, file string, o Options) []*Report {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	reports, err := Read(f, filepath.Base(file), o)
	require.NoError(t, err)
	return reports
}

const recordings = "../../memcache/testdata/recordings/"

// TestPage drives the page of a program with labels and steps.
func TestPage(t *testing.T) {
	browsertest.Program(t)
	l := newLedger(t, memcache.Config{}, 1, everything)
	l.silent = true
	mlp(l, 80, 1000)
	report := l.report(Options{WhatIf: []string{"expandable_segments:True"}})
	a := report.account
	b := openPage(t, 1400, 1000, report)

	// The peak, clicked on in the chart, is the cache's to the byte.
	b.Do(chromedp.Focus(chromedp.ID("timeline")))
	b.Keys(kb.End)
	text, graph, table := b.held()
	require.Equal(t, l.cache.MemoryAllocated(), text)
	require.Equal(t, text, graph)
	require.Equal(t, text, table)
	at := browsertest.Eval[[]float64](b.Browser, `(() => { const t = report.page.timeline, r = t.canvas.getBoundingClientRect(); return [r.left + t.x(report.page.r.peak, 0.5) + 2, r.top + t.y(report.page.r.peakBytes) + 3]; })()`)
	b.Do(chromedp.MouseClickXY(at[0], at[1]))
	text, graph, table = b.held()
	require.Equal(t, l.cache.MaxMemoryAllocated(), text)
	require.Equal(t, text, graph)
	require.Equal(t, text, table)
	require.EqualValues(t, a.peak, browsertest.Eval[int64](b.Browser, `report.page.moment`))

	// Every moment in the page has Go's figures.
	allocated, err := a.allocated()
	require.NoError(t, err)
	require.Equal(t, allocated, browsertest.Eval[[]int64](b.Browser, `[...report.page.moments.allocated.subarray(0, report.page.r.moments + 1)]`))
	reserved, err := a.reserved()
	require.NoError(t, err)
	require.Equal(t, reserved, browsertest.Eval[[]int64](b.Browser, `[...report.page.moments.reserved.subarray(0, report.page.r.moments + 1)]`))
	require.Equal(t, allocated, browsertest.Eval[[]int64](b.Browser, `Array.from({ length: report.page.r.moments + 1 }, (_, i) => { let sum = 0; report.page.moments.live(i - 1, (b) => (sum += report.page.r.size[b])); return sum; })`))
	nonReleasable, err := a.nonReleasable()
	require.NoError(t, err)
	require.Equal(t, nonReleasable, browsertest.Eval[[]int64](b.Browser, `[...report.page.moments.nonReleasable.subarray(0, report.page.r.moments + 1)]`))
	// So has every column of the chart, along entries and along time, near and far, and with every
	// grouping.
	for _, view := range []string{"0", "report.page.timeline.zoomTo(100, 140)", "report.page.timeline.zoomTo(-1, 0)", "report.page.timeline.zoomTo(-1, 1e9)"} {
		for _, axis := range []string{"entries", "time"} {
			for grouping := range browsertest.Eval[int](b.Browser, `document.getElementById("grouping").length`) {
				b.Run(view, choose("axis", axis), choose("grouping", grouping))
				columns := browsertest.Eval[[][]int64](b.Browser, `(() => { const p = report.page, c = p.timeline.columns, g = p.groups.names.length;
					return [...c.moment].map((m, x) => { let sum = 0; for (let k = 0; k < g; k++) sum += c.out[x * g + k]; return [m, c.total[x], sum]; }); })()`)
				require.Greater(t, len(columns), 1000)
				most := int64(0)
				for _, c := range columns {
					require.Equal(t, []int64{allocated[c[0]+1], allocated[c[0]+1]}, c[1:], "the column of moment %d", c[0])
					most = max(most, c[1])
				}
				view := browsertest.Eval[[]int](b.Browser, `[report.page.timeline.view.from, report.page.timeline.view.to]`)
				require.Equal(t, slices.Max(allocated[view[0]+1:view[1]+2]), most, "the peak of what is shown is drawn")
			}
		}
	}
	b.Run(choose("axis", "entries"), choose("grouping", 0))

	// The table of steps sorts, and a chosen step shows its peak.
	b.Do(chromedp.Click(chromedp.ID("steps-all")))
	require.Len(t, b.column("steps", 0), 80)
	b.Do(chromedp.Click(chromedp.CSS("#steps th:nth-child(2) button")))
	peaks := b.column("steps", 1)
	require.True(t, slices.IsSortedFunc(peaks, func(x, y float64) int { return int(y - x) }))
	require.Equal(t, "descending", browsertest.Eval[string](b.Browser, `document.querySelector("#steps th:nth-child(2)").ariaSort`))
	b.Do(chromedp.Click(chromedp.CSS("#steps th:nth-child(2) button")))
	require.True(t, slices.IsSorted(b.column("steps", 1)))
	b.Do(chromedp.Click(chromedp.CSS("#steps th:nth-child(1) button")), chromedp.Click(chromedp.CSS("#steps tbody tr:nth-child(17)")))
	text, _, _ = b.held()
	require.Equal(t, a.steps[16].peak, text)
	require.Equal(t, "17", browsertest.Eval[string](b.Browser, `document.querySelector("#steps tr.selected td").textContent`))
	require.Contains(t, browsertest.Eval[string](b.Browser, `document.getElementById("status").textContent`), "step 17")

	// Growth is reported, with its line.
	require.Contains(t, browsertest.Eval[string](b.Browser, `document.getElementById("kept-about").textContent`), "grow")
	first := browsertest.Eval[string](b.Browser, `document.querySelector("#kept tbody tr").textContent`)
	require.Contains(t, first, "metrics")
	require.Contains(t, first, "program_test.go:")
	require.EqualValues(t, 2, browsertest.Eval[int](b.Browser, `document.querySelectorAll("#whatif tbody tr").length`))
	require.Zero(t, browsertest.Eval[int](b.Browser, `performance.getEntriesByType("resource").length`), "nothing is loaded")
}

// TestKeyboard: all of the page works without a mouse.
func TestKeyboard(t *testing.T) {
	browsertest.Program(t)
	l := newLedger(t, memcache.Config{}, 1, everything)
	mlp(l, 8, 0)
	report := l.report(Options{})
	b := openPage(t, 1200, 1000, report)
	moment := func() int { return browsertest.Eval[int](b.Browser, `report.page.moment`) }
	focus := func() string {
		return browsertest.Eval[string](b.Browser, `document.activeElement.id || document.activeElement.className || document.activeElement.tagName`)
	}
	seen := map[string]bool{}
	for range 60 {
		b.Keys(kb.Tab)
		seen[focus()] = true
		require.NotEqual(t, "none", browsertest.Eval[string](b.Browser, `getComputedStyle(document.activeElement).outlineStyle`), "the focus on %s can be seen", focus())
	}
	for _, id := range []string{"theme", "grouping", "axis", "timeline", "cell", "map", "step-number"} {
		require.True(t, seen[id], "%s can be reached: %v", id, seen)
	}
	b.Do(chromedp.Focus(chromedp.ID("timeline")))
	b.Keys(kb.Home)
	require.Equal(t, -1, moment())
	b.Keys(kb.ArrowRight, kb.ArrowRight)
	require.Equal(t, browsertest.Eval[int](b.Browser, `report.page.moments.next(report.page.moments.next(-1, 1), 1)`), moment())
	b.Keys(kb.ArrowLeft)
	require.Equal(t, browsertest.Eval[int](b.Browser, `report.page.moments.next(-1, 1)`), moment())
	b.Keys(kb.PageDown, kb.PageDown)
	require.EqualValues(t, report.account.steps[1].peakAt, moment())
	require.Contains(t, browsertest.Eval[string](b.Browser, `document.activeElement.ariaValueText`), "step 2")
	b.Keys("+", "+")
	require.Less(t, browsertest.Eval[int](b.Browser, `report.page.timeline.view.to - report.page.timeline.view.from`), int(report.account.moments())/2)
	b.Keys(kb.Escape, "p")
	require.Equal(t, int(report.account.moments()), browsertest.Eval[int](b.Browser, `report.page.timeline.view.to - report.page.timeline.view.from`))
	require.EqualValues(t, report.account.peak, moment())

	// Into the graph, down, open, and back.
	b.Keys(kb.Enter, kb.ArrowDown, kb.Enter)
	require.Equal(t, "cell", focus())
	require.Len(t, browsertest.Eval[[]string](b.Browser, `report.page.flame.path`), 1)
	part, _, table := b.held()
	require.Less(t, table, part)
	b.Keys(kb.Escape)
	require.Empty(t, browsertest.Eval[[]string](b.Browser, `report.page.flame.path`))
	b.Keys(kb.Escape)
	require.Equal(t, "timeline", focus())

	// Around the map: pieces tile the segments.
	b.Do(chromedp.Focus(chromedp.ID("map")))
	b.Keys(kb.ArrowRight, kb.ArrowRight, kb.ArrowLeft)
	require.NotEmpty(t, browsertest.Eval[string](b.Browser, `document.getElementById("map-what").textContent`))
	require.Equal(t, browsertest.Eval[int64](b.Browser, `report.page.moments.reservedAt(report.page.moment)`), browsertest.Eval[int64](b.Browser, `report.page.map.pieces.reduce((a, p) => a + p.size, 0)`))
	require.Equal(t, report.account.peakBytes, browsertest.Eval[int64](b.Browser, `report.page.map.pieces.reduce((a, p) => a + (p.block < 0 ? 0 : p.size), 0)`))

	// A step by its row.
	b.Do(chromedp.Focus(chromedp.CSS("#steps tbody tr[tabindex='0']")))
	b.Keys(kb.ArrowDown, kb.Enter)
	require.True(t, slices.ContainsFunc(report.account.steps, func(s stepAccount) bool { return int(s.peakAt) == moment() }))
}

// TestTheme: dark and light by the system and by the switch, and no page exceeds the width of its
// window.
func TestTheme(t *testing.T) {
	browsertest.Program(t)
	l := newLedger(t, memcache.Config{}, 2, everything)
	mlp(l, 8, 0)
	recorded := readFile(t, recordings+"resnet50.jsonl.gz", Options{Suggest: true})
	for _, reports := range [][]*Report{{l.report(Options{})}, recorded} {
		b := openPage(t, 400, 900, reports...)
		for _, width := range []int64{400, 700, 2000} {
			b.Do(chromedp.EmulateViewport(width, 900))
			b.Wait(fmt.Sprintf(`innerWidth === %d && report.page.timeline.width === document.getElementById("chart").clientWidth`, width))
			require.Equal(t, width, browsertest.Eval[int64](b.Browser, `document.documentElement.scrollWidth`))
		}
		paper := func() string {
			return browsertest.Eval[string](b.Browser, `getComputedStyle(document.documentElement).backgroundColor`)
		}
		light := paper()
		b.Prefer("dark")
		dark := paper()
		require.NotEqual(t, light, dark)
		b.Do(chromedp.Click(chromedp.ID("theme")))
		require.Equal(t, light, paper())
		b.Do(chromedp.Click(chromedp.ID("theme")))
		require.Equal(t, dark, paper())
		b.Prefer("light")
		require.True(t, bytes.HasPrefix(b.PDF(), []byte("%PDF")))
	}
}

// hostile is text that would run if it were markup.
const hostile = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'`${window.hacked=1}--><!--\u2028"

// TestHostileRecording: text of a recording is text everywhere on the page.
func TestHostileRecording(t *testing.T) {
	file := fmt.Sprintf(`{"format":"cistern recording 1","conf":%q}
{"label":0,"module":%[1]q,"category":%[1]q,"tags":%[1]q}
{"frame":0,"function":%[1]q,"file":%[1]q,"line":3}
{"stack":0,"frames":[0]}
{"mark":0,"name":%[1]q,"time":1}
["segment_alloc",4096,2097152,7,1]
["alloc",4096,512,7,2,0,512,0,1,9]
["alloc",8192,512,7,3,0,512,0,2,10]
["free",4096,512,7,4]
{"frame":1,"function":"constructor","file":"","line":0}
{"stack":1,"frames":[1]}
{"label":1,"module":"__proto__.constructor","category":"toString"}
["alloc",12288,512,7,5,1,512,1,2,11]
{"end":0,"time":5}
`, hostile)
	reports, err := Read(strings.NewReader(file), hostile, Options{WhatIf: []string{""}, Layers: []Layer{{Name: hostile, Type: hostile, Output: hostile}}})
	require.NoError(t, err)
	var page bytes.Buffer
	require.NoError(t, Write(&page, reports...))
	require.Equal(t, 2, strings.Count(page.String(), "<script"), "the data and the script")
	require.Equal(t, 2, strings.Count(page.String(), "</script>"))
	require.Zero(t, strings.Count(page.String(), "<img"))
	b := openPage(t, 1000, 900, reports...)
	require.Equal(t, hostile, browsertest.Eval[string](b.Browser, `document.getElementById("name").textContent`))
	b.Do(chromedp.Focus(chromedp.ID("timeline")))
	b.Keys(kb.End)
	require.Contains(t, browsertest.Eval[string](b.Browser, `document.getElementById("holders").textContent`), "<img src=x")
	require.Contains(t, browsertest.Eval[string](b.Browser, `document.getElementById("flame").textContent`), "<img src=x")
	b.Do(chromedp.Focus(chromedp.ID("map")))
	b.Keys(kb.ArrowRight, kb.ArrowRight)
	require.Contains(t, browsertest.Eval[string](b.Browser, `document.getElementById("map-what").textContent`), "<img src=x")
	require.Equal(t, "undefined", browsertest.Eval[string](b.Browser, `typeof window.hacked`))
	require.Zero(t, browsertest.Eval[int](b.Browser, `document.images.length`))
	require.EqualValues(t, 1, browsertest.Eval[int](b.Browser, `document.querySelectorAll("script:not([id])").length`))
}

// TestHostileNames: names of properties that JavaScript's objects have are names like others, with
// and without labels.
func TestHostileNames(t *testing.T) {
	browsertest.Program(t)
	for _, label := range []string{"", `{"label":0,"module":"__proto__.constructor","category":"toString"}` + "\n"} {
		text, stack := `{"format":"cistern recording 1"}`+"\n"+label, 0
		for _, name := range []string{"constructor", "__proto__", "toString"} {
			text += fmt.Sprintf("{\"frame\":%d,\"function\":%q,\"file\":\"\",\"line\":0}\n{\"stack\":%[1]d,\"frames\":[%[1]d]}\n", stack, name)
			text += fmt.Sprintf("[\"alloc\",%d,512,7,%d,%d,512,%d,2]\n", 4096*(stack+1), stack, stack, min(len(label), 1)-1)
			stack++
		}
		reports, err := Read(strings.NewReader(text), "names", Options{})
		require.NoError(t, err)
		b := openPage(t, 1000, 900, reports...)
		shown, graph, table := b.held()
		require.EqualValues(t, 1536, shown)
		require.Equal(t, shown, graph)
		require.Equal(t, shown, table)
	}
}

// TestDeepRecording: a module with very many parts, and a very deep stack, are shown in part.
func TestDeepRecording(t *testing.T) {
	frames := "0" + strings.Repeat(",0", 2000)
	file := fmt.Sprintf(`{"format":"cistern recording 1"}
{"label":0,"module":"%s","category":"activation"}
{"frame":0,"function":"main.recurse","file":"main.go","line":3}
{"stack":0,"frames":[%s]}
["segment_alloc",4096,2097152,7,1]
["alloc",4096,512,7,2,0,512,0,1,9]
["alloc",8192,1024,7,2,0,1024]
`, strings.Repeat("a.b", 200_000), frames)
	reports, err := Read(strings.NewReader(file), "deep", Options{})
	require.NoError(t, err)
	b := openPage(t, 1000, 900, reports...)
	text, graph, table := b.held()
	require.EqualValues(t, 1536, text)
	require.Equal(t, text, graph)
	require.Equal(t, text, table)
	require.Less(t, browsertest.Eval[int](b.Browser, `document.getElementById("main").textContent.length`), 20_000)
}

// TestSmallRecordings: empty ones, one entry, no steps, several devices, a cache without a history.
func TestSmallRecordings(t *testing.T) {
	var reports []*Report
	for _, text := range []string{
		"{}\n",
		"{}\n[\"alloc\",4096,100,0]\n",
		"{}\n[\"free_requested\",4096,100,0]\n",
		"{}\n[\"oom\",4096,100,0]\n",
		"{}\n[\"segment_alloc\",4096,2097152,0]\n",
	} {
		list, err := Read(strings.NewReader(text), "small", Options{WhatIf: []string{""}})
		require.NoError(t, err)
		reports = append(reports, list...)
	}
	l := newLedger(t, memcache.Config{}, 1, memcache.HistoryOptions{})
	l.alloc(memcache.Label{Module: "head", Category: memcache.CategoryParameter}, 5000, 0)
	l.free(l.alloc(memcache.Label{Module: "head", Category: memcache.CategoryActivation}, 7000, 0))
	reports = append(reports, l.report(Options{}))
	b := openPage(t, 900, 900, reports...)
	for i, r := range reports {
		b.Run(choose("device", i))
		b.Do(chromedp.Focus(chromedp.ID("timeline")))
		b.Keys(kb.Home, kb.ArrowRight, kb.ArrowLeft, kb.End, "p", "+", "-", "0", kb.PageDown)
		text, _, _ := b.held()
		if r.account.moments() > 0 {
			require.Equal(t, sum(r.account.heldAt(browsertest.Eval[int32](b.Browser, `report.page.moment`))), text)
		}
	}
	require.Equal(t, l.cache.MaxMemoryAllocated(), b.headline("Peak allocated"))
	b.Run(`report.page.select(-1, report.page.r.profiles[1])`)
	text, graph, table := b.held()
	require.Equal(t, l.cache.MaxMemoryAllocated(), text, "the cache knows its peak without a history")
	require.Equal(t, text, graph)
	require.Equal(t, text, table)
}

// TestOtherDevice: keys and clicks apply to the recording that is shown, and not to an earlier one.
func TestOtherDevice(t *testing.T) {
	browsertest.Program(t)
	var reports []*Report
	for _, steps := range []int{9, 4, 6} {
		l := newLedger(t, memcache.Config{}, 1, everything)
		mlp(l, steps, 0)
		reports = append(reports, l.report(Options{WhatIf: []string{""}}))
	}
	b := openPage(t, 1200, 900, reports...)
	b.Run(`window.old = report.page`)
	for i := range reports[1:] {
		b.Run(choose("device", i+1))
		b.Run(`window.shown = 0; for (const p of [old, report.page]) { const select = p.select; p.select = function(...args) { window.shown++; this.touched = true; return select.apply(this, args); }; }`)
		b.Do(chromedp.Focus(chromedp.ID("timeline")))
		b.Keys(kb.Home)
		require.Equal(t, 1, browsertest.Eval[int](b.Browser, `window.shown`), "one page hears a key")
		b.Do(chromedp.Click(chromedp.CSS("#steps tbody tr:nth-child(3)")))
		require.Equal(t, 2, browsertest.Eval[int](b.Browser, `window.shown`))
		b.Do(chromedp.Focus(chromedp.CSS("#steps tbody tr[tabindex='0']")))
		b.Keys(kb.Enter)
		require.Equal(t, 3, browsertest.Eval[int](b.Browser, `window.shown`))
		require.False(t, browsertest.Eval[bool](b.Browser, `!!old.touched`))
		text, _, _ := b.held()
		require.Equal(t, reports[i+1].account.steps[2].peak, text)
		b.Run(`window.old = report.page; delete old.touched`)
	}
}

// TestWriteNothing: wrong arguments are errors.
func TestWriteNothing(t *testing.T) {
	_, nilCache := FromCache(nil, nil, Options{})
	_, nilReader := Read(nil, "x", Options{})
	_, limits := Read(strings.NewReader("{}\n"), "x", Options{MaxWork: -1})
	for want, err := range map[string]error{
		"nothing to show": Write(&bytes.Buffer{}), "nil report": Write(&bytes.Buffer{}, nil), "writer is nil": Write(nil), "cache is nil": nilCache, "reader is nil": nilReader,
		"positive": limits, "Maybe": CheckWhatIf([]string{"", "expandable_segments:Maybe"}),
	} {
		require.ErrorIs(t, err, device.ErrInvalid)
		require.ErrorContains(t, err, want)
		require.True(t, strings.HasPrefix(err.Error(), "report: "), err)
	}
	_, err := Read(strings.NewReader("hello"), "x", Options{})
	require.ErrorContains(t, err, "neither JSON lines nor a pickle")
	reports := readFile(t, recordings+"mnist_mlp.jsonl.gz", Options{})
	require.ErrorContains(t, Write(full{}, reports...), "no space")
}

// full is a disk without space.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, fmt.Errorf("no space") }

// TestTitle: the title is the only text of a recording in the HTML itself.
func TestTitle(t *testing.T) {
	reports, err := Read(strings.NewReader("{}\n"), hostile, Options{})
	require.NoError(t, err)
	var page bytes.Buffer
	require.NoError(t, Write(&page, reports...))
	require.Equal(t, 2, strings.Count(page.String(), "<script"))
	require.Zero(t, strings.Count(page.String(), "<img"))
}

// TestThousandSteps: a page of 1,000 steps of training, with a stack for each allocation, is small.
func TestThousandSteps(t *testing.T) {
	l := newLedger(t, memcache.Config{}, 1, everything)
	l.silent = true
	mlp(l, 1000, 0)
	report := l.report(Options{Suggest: true})
	require.Len(t, report.account.steps, 1000)
	var page bytes.Buffer
	require.NoError(t, Write(&page, report))
	require.Less(t, page.Len(), 300_000)
	b := openPage(t, 1200, 900, report)
	b.Run(`(() => { const input = document.getElementById("step-number"); input.value = 617; input.onchange(); })()`)
	text, graph, table := b.held()
	require.Equal(t, report.account.steps[616].peak, text)
	require.Equal(t, text, graph)
	require.Equal(t, text, table)
	require.Equal(t, "617", browsertest.Eval[string](b.Browser, `document.querySelector("#steps tr.selected td").textContent`))
}
