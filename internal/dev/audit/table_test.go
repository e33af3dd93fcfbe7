package audit

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// columns are those of the profiler's table, by its two lines of headings.
var columns = []string{"step", "allocated at start", "allocated at end", "peak", "own peak", "own at end", "reserved", "allocations", "cache hits",
	"copied to device", "copied to host", "host time", "device time", "device busy"}

var (
	wide  = regexp.MustCompile(`\s{2,}`)
	rowOf = regexp.MustCompile(`^ *(first|second|slowest|largest|mean of|failed) +(.*)$`)
)

// checkTable reads the profiler's table. Its rows are steps that the summary has, which is compared
// elsewhere; here each cell is compared with the truth of its step.
func (w *world) checkTable() {
	var out bytes.Buffer
	require.NoError(w.t, w.profiler.Table(&out))
	summary, table := w.profiler.Summary(), out.String()
	if w.worldSize > 0 {
		ranks, rest, _ := strings.Cut(table, "\n")
		require.Equal(w.t, fmt.Sprintf("rank %d of %d", w.rank, w.worldSize), ranks)
		table = rest
	}
	lines := strings.Split(table, "\n")
	heads := slices.Clone(columns)
	graphs := slices.ContainsFunc([]trace.StepProfile{summary.Mean, summary.Largest, summary.LastFailed}, func(p trace.StepProfile) bool { return p.GraphBytes > 0 })
	if graphs {
		heads = append(heads, "held by graphs")
	}
	if summary.OutOfMemory > 0 {
		heads = append(heads, "out of memory")
	}
	require.Equal(w.t, strings.Fields(strings.Join(heads, " ")), w.headings(lines[0], lines[1]), "%s", table)
	got, want := figures{}, figures{}
	rows := map[string]trace.StepProfile{"first": summary.First, "second": summary.Second, "slowest": summary.Slowest, "largest": summary.Largest, "failed": summary.LastFailed}
	good := summary.Steps - summary.Failed
	end := len(lines[0]) + len(lines[1]) + 2
	for _, line := range lines[2:] {
		m := rowOf.FindStringSubmatch(line)
		if m == nil {
			break // the table ends
		}
		end += len(line) + 1
		name, p := m[1], rows[m[1]]
		if name == "mean of" {
			p = summary.Mean
			p.Step = good
		}
		cells := wide.Split(strings.TrimSpace(m[2]), -1)
		require.Len(w.t, cells, len(heads), "%q", line)
		for i, c := range cells {
			got[name+", "+heads[i]] = c
		}
		cells = cellsOf(p, summary, name)
		if graphs {
			cells = append(cells, humanize.IBytes(uint64(p.GraphBytes)))
		}
		for i, c := range append(cells, humanize.Comma(p.OutOfMemory))[:len(heads)] {
			want[name+", "+heads[i]] = c
		}
	}
	shownRows := map[string]bool{"first": good >= 1, "second": good >= 2, "slowest": good >= 1, "largest": good >= 1, "mean of": good >= 1, "failed": summary.Failed > 0}
	for name, there := range shownRows {
		require.Equal(w.t, there, got[name+", step"] != nil, "%v: the row %q of\n%s", w, name, table)
	}
	requireTrue(w.t, "trace.Table", got, want, w)
	w.checkBeneath(summary, table[end:])
}

// headings are the words of both lines, from left to right and from top to bottom.
func (w *world) headings(over, under string) (words []string) {
	type word struct {
		end  int
		text string
	}
	var upper []word
	for _, at := range regexp.MustCompile(`\S+( \S+)*`).FindAllStringIndex(over, -1) {
		upper = append(upper, word{at[1], over[at[0]:at[1]]})
	}
	for _, at := range regexp.MustCompile(`\S+( \S+)*`).FindAllStringIndex(under, -1) {
		for _, u := range upper {
			if u.end == at[1] {
				words = append(words, strings.Fields(u.text)...)
			}
		}
		words = append(words, strings.Fields(under[at[0]:at[1]])...)
	}
	return words
}

// cellsOf are the cells of a row, in the order of the columns.
func cellsOf(p trace.StepProfile, s trace.Summary, row string) []string {
	bytes := func(n int64) string { return humanize.IBytes(uint64(n)) }
	hits := "-"
	if p.Allocations > 0 {
		rate := 0.0
		if n := p.Hits + p.Misses; n > 0 {
			rate = float64(p.Hits) / float64(n)
		}
		if row == "mean of" {
			rate = s.HitRate
		}
		hits = fmt.Sprintf("%.1f%%", 100*rate)
	}
	return []string{humanize.Comma(p.Step), bytes(p.AllocatedStart), bytes(p.AllocatedEnd), bytes(p.AllocatedPeak), bytes(p.OwnPeak), bytes(p.OwnLive),
		bytes(p.Reserved), humanize.Comma(p.Allocations), hits, bytes(p.H2DBytes), bytes(p.D2HBytes), digits(p.HostTime), digits(p.DeviceTime),
		digits(p.BusyTime)}
}

// checkBeneath compares the lines beneath the table: the holders of the largest step's peak, the graphs
// of the last step with replays, and failures.
func (w *world) checkBeneath(s trace.Summary, text string) {
	words := strings.Join(strings.Fields(text), " ")
	var want []string
	line := func(format string, args ...any) { want = append(want, fmt.Sprintf(format, args...)) }
	bytes := func(n int64) string { return humanize.IBytes(uint64(n)) }
	list := func(categories, modules []memcache.Share, all int64) {
		for _, part := range []struct {
			head   string
			shares []memcache.Share
		}{{"by category", categories}, {"largest modules", modules}} {
			if part.head == "largest modules" {
				if len(part.shares) == 1 && part.shares[0].Name == "" {
					continue
				}
				part.shares = part.shares[:min(3, len(part.shares))]
			}
			for i, x := range part.shares {
				name, blocks := x.Name, "blocks"
				if name == "" {
					name = "(no module)"
				}
				if x.Blocks == 1 {
					blocks = "block"
				}
				text := fmt.Sprintf("%s %s %.0f%% %d %s", name, bytes(x.Bytes), 100*float64(x.Bytes)/float64(all), x.Blocks, blocks)
				if i == 0 {
					text = part.head + " " + text
				}
				line("%s", text)
			}
		}
	}
	if largest := s.Largest; largest.AllocatedPeak > 0 {
		graphs := ""
		if n := largest.Peak.Graphs; n > 0 {
			graphs = bytes(n) + " held by graphs, "
		}
		line("at the peak of step %d: %s allocated, %s%s more reserved", largest.Step, bytes(largest.AllocatedPeak), graphs, bytes(largest.Peak.Free))
		list(largest.Peak.Categories, largest.Peak.Modules, largest.AllocatedPeak)
	}
	if p := s.LastReplayed; len(p.Replays) > 0 {
		line("replayed in step %d: %s allocated at the step's peak, %s held by graphs at its end", p.Step, bytes(p.AllocatedPeak), bytes(p.GraphBytes))
		for _, r := range p.Replays {
			alone := "not shared"
			if n := r.PoolGraphs - 1; n > 0 {
				alone = fmt.Sprintf("shared with %d other graph", n)
				if n > 1 {
					alone += "s"
				}
			}
			line("graph %d, %d blocks: %s at its peak, in private pool %[5]d of %[4]s, %[6]s", r.Graph, r.Allocations, bytes(r.Held), bytes(r.PoolReserved), r.Pool[1], alone)
			list(r.Categories, r.Modules, r.Held)
		}
	}
	if s.Failed > 0 {
		line("steps that failed: %d of %d, the last one was %d", s.Failed, s.Steps, s.LastFailed.Step)
	}
	if s.Retries > 0 {
		line("driver allocations tried again after a flush: %d", s.Retries)
	}
	if s.OutOfMemory > 0 {
		line("requests that ran out of memory: %d", s.OutOfMemory)
	}
	require.Equal(w.t, strings.Join(want, " "), words, "%v", w)
}
