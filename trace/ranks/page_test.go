package ranks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// lateRank returns the profiles of three ranks of which rank 1 comes last in all steps except the
// first.
func lateRank() [][]trace.StepProfile {
	profiles, _ := training(rand.New(rand.NewPCG(6, 6)), 3, 20)
	for rank := range profiles {
		for step := range profiles[rank] {
			p := &profiles[rank][step]
			if step > 0 {
				p.TraceID = fmt.Sprintf("%032x", 0xabc00+step)
			}
			for i := range p.Collectives {
				if rank != 1 && step != 0 {
					p.Collectives[i].Time += 100 * time.Millisecond
				}
			}
		}
	}
	profiles[0][0].AllocatedPeak = most
	return profiles
}

// htmlOf returns the page of a report.
func htmlOf(t *testing.T, r *Report, title string) string {
	var page bytes.Buffer
	require.NoError(t, r.HTML(&page, title))
	return page.String()
}

// openPage opens the page of a report.
func openPage(t *testing.T, r *Report) *browsertest.Browser {
	browsertest.Program(t)
	return browsertest.Open(t, 1280, 800, pageFile(t, r), ready)
}

const ready = `document.querySelector("main.ready:not([aria-busy])") !== null`

func pageFile(t *testing.T, r *Report) (url string) {
	file := filepath.Join(t.TempDir(), "ranks.html")
	require.NoError(t, os.WriteFile(file, []byte(htmlOf(t, r, "t")), 0o600))
	return "file://" + file
}

// rowsOf returns the cells of a table: the value of those that have one, and else the text.
func rowsOf(b *browsertest.Browser, id string) [][]string {
	return browsertest.Eval[[][]string](b, fmt.Sprintf(`[...document.querySelectorAll("#%s tbody tr")].map((r) => [...r.querySelectorAll("td")].map((c) => c.querySelector("data")?.value ?? c.textContent))`, id))
}

// headOf returns the names of a table's columns.
func headOf(b *browsertest.Browser, id string) []string {
	return browsertest.Eval[[]string](b, fmt.Sprintf(`[...document.querySelectorAll("#%s thead th")].map((h) => h.textContent.replace(/ [↓↑]$/, ""))`, id))
}

// TestParallelReportPages: the page's data and the table are the report's, and a text of a file is
// not markup.
func TestParallelReportPages(t *testing.T) {
	profiles := lateRank()
	profiles[0][0].Peak.Categories = []memcache.Share{{Name: `</script><script src="http://x">`, Bytes: 1 << 20}}
	r := read(t, profiles)
	page := htmlOf(t, r, "<b>t</b>")
	var table bytes.Buffer
	require.NoError(t, r.Table(&table))
	require.NotContains(t, page, "<b>t")
	require.Equal(t, 2, strings.Count(page, "<script"))
	require.Contains(t, page, "default-src 'none'")
	_, data, _ := strings.Cut(page, `id="data">`)
	data, _, _ = strings.Cut(data, "</script>")
	var got view
	require.NoError(t, json.Unmarshal([]byte(data), &got))
	require.Equal(t, r, got.Report)
	require.Contains(t, got.Headline, "the straggler is rank 1")
	require.Contains(t, table.String(), got.Headline)
	for _, x := range r.Ranks {
		require.Contains(t, table.String(), duration(x.Waited))
	}
	require.Contains(t, table.String(), "240 collective operations of 1.1 KiB were in replayed graphs")
	r, err := Read(Options{}, File{"f", strings.NewReader(`{"step":1,"world_size":1}`)})
	require.NoError(t, err)
	require.Contains(t, r.Notes[0], "a Profiler without a Communicator records none")
}

// TestParallelPageFigures: all figures of the page are the report's.
func TestParallelPageFigures(t *testing.T) {
	r := read(t, lateRank())
	b := openPage(t, r)
	require.Equal(t, "T"+r.Headline()[1:]+".", browsertest.Eval[string](b, `document.getElementById("headline").textContent`))
	require.Equal(t, "rank 1", browsertest.Eval[string](b, `document.querySelector("#figures dd").textContent`))
	number := func(v any) string { return fmt.Sprint(v) }
	var ranks, memory, waits [][]string
	for i, x := range r.Ranks {
		ns := func(d time.Duration) string { return number(d.Nanoseconds()) }
		ranks = append(ranks, []string{number(i), number(x.Steps), ns(x.HostTime), ns(x.DeviceTime), number(x.Collectives), number(x.Bytes), number(x.Replayed),
			number(x.ReplayedBytes), ns(x.CollectiveTime), ns(x.Waited), fmt.Sprintf("%.1f %%", 100*float64(x.Waited)/float64(x.CollectiveTime)), ns(x.HeldUp),
			number(x.Last), number(x.LastSteps), number(x.P), ns(x.WaitedFor)})
		memory = append(memory, []string{number(i), number(x.AllocatedPeak), number(x.PeakStep), number(x.ReservedPeak), ""})
	}
	for _, w := range r.Waits {
		waits = append(waits, []string{number(w.Step), number(w.Waited.Nanoseconds()), number(w.Last), number(w.HeldUp.Nanoseconds()), w.TraceID})
	}
	got := rowsOf(b, "ranks")
	for i := range got {
		var p float64
		_, err := fmt.Sscan(got[i][14], &p)
		require.NoError(t, err)
		require.InDelta(t, r.Ranks[i].P, p, 0)
		got[i][14] = number(r.Ranks[i].P) // JavaScript writes it in another form
	}
	require.Equal(t, ranks, got)
	require.Equal(t, memory, rowsOf(b, "memory"))
	require.Equal(t, waits, rowsOf(b, "waits"))
	shares := browsertest.Eval[[][]string](b, `[...document.querySelectorAll("#memory .bar")].map((bar) => [...bar.children].map((i) => i.title))`)
	for i, x := range r.Ranks {
		require.Len(t, shares[i], len(x.Categories))
		for c, s := range x.Categories {
			require.Regexp(t, regexp.QuoteMeta(s.Name)+`: .*\(`+grouped(s.Bytes)+` byte`, shares[i][c])
		}
	}
	require.Equal(t, cellsOf(dense(r)), rowsOf(b, "matrix"))
	require.Equal(t, "rank 1", "rank "+browsertest.Eval[string](b, `document.querySelector("#ranks .alarm").textContent`))
}

// grouped is a number with commas.
func grouped(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// cellsOf returns the cells that a matrix should have, in ns.
func cellsOf(waited [][]time.Duration) (rows [][]string) {
	for _, line := range waited {
		var row []string
		for _, d := range line {
			text := ""
			if d > 0 {
				text = fmt.Sprint(d.Nanoseconds())
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	return rows
}

// manyRanks returns a report in which each rank has waited for each other one.
func manyRanks(t *testing.T, n int) (r *Report, waited [][]time.Duration) {
	random := rand.New(rand.NewPCG(1, 2))
	var m Merger
	waited = make([][]time.Duration, n)
	for rank := range n {
		p := trace.StepProfile{Step: 1, Rank: rank, WorldSize: n, Communicator: "c", HostTime: time.Second, AllocatedPeak: 1 << 30}
		waited[rank] = make([]time.Duration, n)
		for last := range n { // the rank that comes last in operation last+1, and takes 1 µs
			if rank != last {
				waited[rank][last] = time.Duration(1 + random.Int64N(1e7))
			}
			p.Collectives = append(p.Collectives, trace.StepCollective{Number: int64(last + 1), Time: time.Microsecond + waited[rank][last]})
		}
		require.NoError(t, m.Add(p))
	}
	r, err := m.Report()
	require.NoError(t, err)
	require.Empty(t, r.Notes)
	require.Equal(t, waited, dense(r))
	return r, waited
}

// TestParallelPageOfManyRanks: a page of 512 ranks is a picture that names each wait.
func TestParallelPageOfManyRanks(t *testing.T) {
	r, waited := manyRanks(t, 512)
	start := time.Now()
	page := htmlOf(t, r, "t")
	t.Logf("%d bytes in %s", len(page), time.Since(start))
	require.Less(t, len(page), 4<<20)
	b := openPage(t, r)
	require.Equal(t, []int{512, 512}, browsertest.Eval[[]int](b, `(() => { const c = document.querySelector("#matrix canvas"); return [c.width, c.height]; })()`))
	for _, at := range [][2]int{{0, 511}, {511, 0}, {17, 400}} {
		b.Run(fmt.Sprintf(`(() => { const c = document.querySelector("#matrix canvas"), r = c.getBoundingClientRect(); c.dispatchEvent(new PointerEvent("pointermove", { clientX: r.left + %d.5, clientY: r.top + %d.5 })); })()`, at[1], at[0]))
		require.Equal(t, fmt.Sprintf("rank %d waited for rank %d", at[0], at[1]), browsertest.Eval[string](b, `document.querySelector("#tip span").textContent`))
		require.EqualValues(t, waited[at[0]][at[1]], browsertest.Eval[int64](b, `Number(document.querySelector("#tip data").value)`))
	}
}

// TestParallelTracesOfSteps: a step of the page names its trace, as a link if there is a template.
func TestParallelTracesOfSteps(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for template, want := range map[string]string{
		"": "",
		"http://localhost:16686/trace/{trace_id}":          "http://localhost:16686/trace/" + id,
		`https://h/explore?a="b"&id={trace_id}#{trace_id}`: `https://h/explore?a=%22b%22&id=` + id + `#` + id,
	} {
		var files []File
		for rank, traceID := range []string{`"trace_id":"` + id + `",`, ``} {
			files = append(files, File{fmt.Sprint(rank), strings.NewReader(fmt.Sprintf(
				`{"step":7,%s"rank":%d,"world_size":2,"collectives":[{"number":1,"time_ns":%d}]}`, traceID, rank, 5+3*rank))})
		}
		r, err := Read(Options{TraceURL: template}, files...)
		require.NoError(t, err)
		require.Equal(t, id, r.Waits[0].TraceID)
		require.Equal(t, strings.ReplaceAll(template, "{trace_id}", id), r.Waits[0].TraceURL)
		b := openPage(t, r)
		require.Equal(t, [][]string{{"7", "3", "0", "3", id}}, rowsOf(b, "waits"))
		require.Equal(t, want, browsertest.Eval[string](b, `document.querySelector("#waits tbody a")?.href ?? ""`))
	}
}

// TestParallelColumnNames: no two columns of a table have the same name, and those of the text are
// columns of the page.
func TestParallelColumnNames(t *testing.T) {
	r := read(t, lateRank())
	b := openPage(t, r)
	var all []string
	for _, id := range []string{"ranks", "matrix", "memory", "waits"} {
		names := headOf(b, id)
		require.NotEmpty(t, names)
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names), names)
		all = append(all, names...)
	}
	var table bytes.Buffer
	require.NoError(t, r.Table(&table))
	names := regexp.MustCompile(` {2,}`).Split(strings.TrimSpace(strings.Split(table.String(), "\n")[1]), -1)
	require.Subset(t, all, names)
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names), names)
}

// TestParallelLook: the page is readable on a desk and on a phone, in the light and the dark theme.
func TestParallelLook(t *testing.T) {
	browsertest.Program(t)
	browsertest.CheckLook(t, pageFile(t, read(t, lateRank())), ready)
	many, _ := manyRanks(t, 48)
	browsertest.CheckLook(t, pageFile(t, many), ready)
}
