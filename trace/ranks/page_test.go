package ranks

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// TestParallelReportPages: the page and the table show the report's figures, and a text of a file
// becomes neither markup nor an address.
func TestParallelReportPages(t *testing.T) {
	profiles, _ := training(rand.New(rand.NewPCG(6, 6)), 3, 20)
	for rank := range profiles {
		for step := range profiles[rank] {
			p := &profiles[rank][step]
			if step > 0 {
				p.TraceID = fmt.Sprintf("%032x", 0xabc00+step)
			}
			for i := range p.Collectives {
				if rank != 1 && step != 0 { // rank 1 is late
					p.Collectives[i].Time += 100 * time.Millisecond
				}
			}
		}
	}
	profiles[0][0].AllocatedPeak = most
	profiles[0][0].Peak.Categories = []memcache.Share{{Name: `<script src="http://x">`, Bytes: 1 << 20}}
	r := read(t, profiles)
	var page, table bytes.Buffer
	require.NoError(t, r.HTML(&page, "<b>t</b>"))
	require.NoError(t, r.Table(&table))
	assert.NotContains(t, page.String(), "<script")
	assert.NotContains(t, page.String(), "<b>t")
	assert.NotContains(t, page.String(), "ZgotmplZ", "an escaped value")
	assert.Contains(t, page.String(), "default-src 'none'")
	assert.Empty(t, regexp.MustCompile(`(src|href)=`).FindAllString(strings.ReplaceAll(page.String(), "src=&#34;", ""), -1))
	for _, text := range []string{page.String(), table.String()} {
		assert.Contains(t, text, "the straggler is rank 1")
		for _, x := range r.Ranks {
			assert.Contains(t, text, duration(x.Waited))
		}
	}
	assert.Equal(t, 1, strings.Count(page.String(), `<tr class="straggler">`))
	assert.Equal(t, cellsOf(dense(r)), matrixOf(page.String()))
	for _, x := range r.Ranks {
		assert.Contains(t, page.String(), fmt.Sprintf("<td>%d<td>%d B<td>%s", x.Replayed, x.ReplayedBytes, duration(x.CollectiveTime)))
	}
	assert.Contains(t, table.String(), "240 collective operations of 1.1 KiB were in replayed graphs")
	r, err := Read(Options{}, File{"f", strings.NewReader(`{"step":1,"world_size":1}`)})
	require.NoError(t, err)
	assert.Contains(t, r.Notes[0], "a Profiler without a Communicator records none")
}

// matrixOf returns the texts of the matrix's cells.
func matrixOf(page string) (rows [][]string) {
	_, table, _ := strings.Cut(page, `<table class="matrix">`)
	table, _, _ = strings.Cut(table, "</table>")
	for _, line := range strings.Split(strings.TrimSpace(table), "\n")[1:] {
		var row []string
		for _, cell := range strings.Split(strings.TrimSuffix(line, "</tr>"), "<td")[1:] {
			_, text, _ := strings.Cut(cell, ">")
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	return rows
}

// cellsOf returns the texts that the cells of a matrix should have.
func cellsOf(waited [][]time.Duration) (rows [][]string) {
	for _, line := range waited {
		var row []string
		for _, d := range line {
			text := ""
			if d > 0 {
				text = duration(d)
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	return rows
}

// TestParallelPageOfManyRanks: a page of 512 ranks shows every wait, and one of more ranks leaves
// the matrix out.
func TestParallelPageOfManyRanks(t *testing.T) {
	const n = matrixRanks
	random := rand.New(rand.NewPCG(1, 2))
	var m Merger
	waited := make([][]time.Duration, n)
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
	var page bytes.Buffer
	start := time.Now()
	require.NoError(t, r.HTML(&page, "t"))
	t.Logf("%d bytes in %s", page.Len(), time.Since(start))
	require.Less(t, page.Len(), 10<<20)
	require.Equal(t, cellsOf(waited), matrixOf(page.String()))

	m = Merger{}
	require.NoError(t, m.Add(trace.StepProfile{WorldSize: n + 1}))
	r, err = m.Report()
	require.NoError(t, err)
	page.Reset()
	require.NoError(t, r.HTML(&page, "t"))
	require.NotContains(t, page.String(), `<table class="matrix">`)
	require.Contains(t, page.String(), "The matrix of 513 ranks is left out")
}

// TestParallelTracesOfSteps: a step of the page names its trace, as a link if there is a template.
func TestParallelTracesOfSteps(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	files := func() (files []File) {
		for rank, traceID := range []string{`"trace_id":"` + id + `",`, ``} {
			files = append(files, File{fmt.Sprint(rank), strings.NewReader(fmt.Sprintf(
				`{"step":7,%s"rank":%d,"world_size":2,"collectives":[{"number":1,"time_ns":%d}]}`, traceID, rank, 5+3*rank))})
		}
		return files
	}
	for template, want := range map[string]string{
		"": `<td>7<td>3ns<td>0<td>3ns<td><code>` + id + `</code>`,
		"http://localhost:16686/trace/{trace_id}":          `<td>7<td>3ns<td>0<td>3ns<td><a href="http://localhost:16686/trace/` + id + `">` + id + `</a>`,
		`https://h/explore?a="b"&id={trace_id}#{trace_id}`: `<a href="https://h/explore?a=%22b%22&amp;id=` + id + `#` + id + `">`,
	} {
		r, err := Read(Options{TraceURL: template}, files()...)
		require.NoError(t, err)
		require.Equal(t, id, r.Waits[0].TraceID)
		require.Equal(t, strings.ReplaceAll(template, "{trace_id}", id), r.Waits[0].TraceURL)
		var page bytes.Buffer
		require.NoError(t, r.HTML(&page, "t"))
		require.Contains(t, page.String(), want)
	}
}

// TestParallelColumnNames: no two columns of a table have the same name, and those of the text are
// columns of the page.
func TestParallelColumnNames(t *testing.T) {
	profiles, _ := training(rand.New(rand.NewPCG(6, 6)), 3, 8)
	r := read(t, profiles)
	var page, table bytes.Buffer
	require.NoError(t, r.HTML(&page, "t"))
	require.NoError(t, r.Table(&table))
	var all []string
	tables := strings.Split(page.String(), "<table")[1:]
	require.Len(t, tables, 4)
	for _, text := range tables {
		head, _, _ := strings.Cut(text, "</tr>")
		var names []string
		for _, m := range regexp.MustCompile(`<th[^>]*>([^<]+)`).FindAllStringSubmatch(head, -1) {
			names = append(names, m[1])
		}
		assert.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names), names)
		all = append(all, names...)
	}
	names := regexp.MustCompile(` {2,}`).Split(strings.TrimSpace(strings.Split(table.String(), "\n")[1]), -1)
	assert.Subset(t, all, names)
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names), names)
}
