package ranks

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/trace/internal/steplines"
)

// allocated returns how many bytes f allocates, garbage included.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// list returns a profile of a rank in n elements: the list's name, and its elements by their index.
func list(head, name string, n int, element func(i int) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{%s,"%s":[`, head, name)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(element(i))
	}
	b.WriteString("]}\n")
	return b.String()
}

// TestParallelReportOfManyRanksFromOneLine: a line of 64 bytes costs no more than the list of
// ranks.
func TestParallelReportOfManyRanksFromOneLine(t *testing.T) {
	const line = `{"step": 1, "rank": 0, "world_size": 4096, "allocated_peak": 1}` + "\n"
	var r *Report
	var err error
	n := allocated(func() { r, err = Read(Options{}, File{"f", strings.NewReader(line)}) })
	require.NoError(t, err)
	require.Less(t, n, int64(3<<20))
	require.Equal(t, []string{
		"there are no profiles of ranks 1 to 4095: no operation is matched without them",
		"the profiles have no collective operations: a Profiler without a Communicator records none",
	}, r.Notes)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	t.Logf("%d bytes allocated, %d of JSON", n, len(text))
	require.Less(t, len(text), 2<<20)
}

// TestParallelReportOfManyOperationsInOneLine: a line costs a multiple of its bytes, whatever the
// number of ranks, and is refused before it costs more than the limit.
func TestParallelReportOfManyOperationsInOneLine(t *testing.T) {
	const world = `"step":1,"rank":0,"world_size":4096`
	for _, c := range []struct {
		name string
		text string
		per  int64 // bytes for each byte, garbage included
	}{
		{"numbers", list(world, "collectives", 60_000, func(i int) string { return fmt.Sprintf(`{"number":%d}`, i+1) }), 40},
		{"one number", list(world, "collectives", 80_000, func(int) string { return `{"number":1}` }), 40},
		{"empty", list(world, "collectives", 300_000, func(int) string { return `{}` }), 100},
		{"replays", list(world, "replays", 300_000, func(int) string { return `{}` }), 20},
		{"no objects", list(world, "collectives", 450_000, func(int) string { return `0` }), 200},
		{"categories", strings.TrimSpace(list(world+`,"peak":{"free":0`, "categories", 300_000, func(int) string { return `{}` })) + "}", 80},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Less(t, len(c.text), 2<<20)
			n := allocated(func() { _, _ = Read(Options{}, File{"f", strings.NewReader(c.text)}) })
			t.Logf("%d bytes allocated for %d", n, len(c.text))
			require.Less(t, n, 3<<20+c.per*int64(len(c.text)))

			n = allocated(func() {
				_, err := Read(Options{MaxMemory: 10 << 20}, File{"f", strings.NewReader(c.text)})
				require.ErrorIs(t, err, budget.ErrExceeded)
			})
			require.Less(t, n, int64(16<<20))
		})
	}
}

// endless is a line without end.
type endless struct{ text string }

func (e endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		n += copy(p[n:], e.text)
	}
	return n, nil
}

// TestParallelReportLimits: files that cost more than the limits are refused, and the error names
// the file, the line and the flag.
func TestParallelReportLimits(t *testing.T) {
	const good = `{"step":1,"rank":0,"world_size":2,"collectives":[{"number":1}]}` + "\n"
	empty := func() io.Reader { return io.MultiReader(strings.NewReader(good+`{"collectives":[`), endless{"{},"}) }
	for _, c := range []struct {
		options Options
		in      io.Reader
		want    string
	}{
		{Options{MaxMemory: 1}, strings.NewReader(good), "ranks: f: "},
		{Options{MaxMemory: steplines.BufferCost + 100}, strings.NewReader(good), "ranks: f, line 1: "},
		{Options{MaxWork: 50}, strings.NewReader(good), "ranks: f, line 1: "},
		{Options{MaxWork: 300}, strings.NewReader(good + good), "ranks: f, line 2: "},
		{Options{MaxWork: 1000}, strings.NewReader(good), "ranks: the page of 2 ranks: "},
		{Options{MaxMemory: 1 << 20}, empty(), "ranks: f, line 2: "},
		{Options{MaxWork: 1 << 20}, empty(), "ranks: f, line 2: "},
	} {
		n := allocated(func() {
			_, err := Read(c.options, File{"f", c.in})
			require.ErrorIs(t, err, budget.ErrExceeded)
			require.ErrorContains(t, err, c.want)
			require.Contains(t, err.Error(), map[bool]string{true: "--max-memory", false: "--max-work"}[c.options.MaxMemory > 0])
		})
		require.Less(t, n, int64(8<<20))
	}
	_, err := Read(Options{MaxMemory: -1})
	require.ErrorIs(t, err, ErrInvalid)
}

// TestParallelReportChargesWhatItKeeps: the memory that is charged is what a Merger holds, or a few
// times as much.
func TestParallelReportChargesWhatItKeeps(t *testing.T) {
	head := func(rank, size int, rest string) string {
		return fmt.Sprintf(`"step":1,"rank":%d,"world_size":%d%s`, rank, size, rest)
	}
	for name, write := range map[string]func(b *strings.Builder){
		"ranks": func(b *strings.Builder) { fmt.Fprintf(b, "{%s}\n", head(0, 4096, "")) },
		"open operations": func(b *strings.Builder) {
			for rank := range 3 {
				b.WriteString(list(head(rank, 4, ""), "collectives", 20_000, func(i int) string { return fmt.Sprintf(`{"number":%d}`, i+1) }))
			}
		},
		"matched operations": func(b *strings.Builder) {
			for rank := range 2 {
				b.WriteString(list(head(rank, 2, ""), "collectives", 20_000, func(i int) string { return fmt.Sprintf(`{"number":%d}`, i+1) }))
			}
		},
		"steps": func(b *strings.Builder) {
			for i := range 20_000 {
				fmt.Fprintf(b, `{"step":%d,"world_size":2,"collectives":[{"number":%d,"time_ns":1}]}`+"\n", i, i+1)
				fmt.Fprintf(b, `{"step":%d,"rank":1,"world_size":2,"collectives":[{"number":%d}]}`+"\n", i, i+1)
			}
		},
		"communicators": func(b *strings.Builder) {
			for i := range 20_000 {
				b.WriteString(list(head(0, 2, fmt.Sprintf(`,"communicator":"%d"`, i)), "collectives", 1, func(int) string { return `{"number":1}` }))
			}
		},
		"columns": func(b *strings.Builder) {
			for rank := range 200 {
				b.WriteString(list(head(rank, 200, ""), "collectives", 200, func(i int) string {
					return fmt.Sprintf(`{"number":%d,"time_ns":%d}`, i+1, max(i-rank, rank-i))
				}))
			}
		},
		"categories": func(b *strings.Builder) {
			for i := range 12 { // a higher peak replaces the categories
				peak := fmt.Sprintf(`,"allocated_peak":%d,"peak":{"free":0`, i)
				text := list(head(i%2, 2, peak), "categories", 10_000, func(i int) string { return fmt.Sprintf(`{"name":"%d"}`, i) })
				b.WriteString(strings.TrimSpace(text) + "}\n")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			write(&b)
			m := Merger{budget: budget.New(budget.Limits{})}
			s, err := steplines.New(strings.NewReader(b.String()), m.budget)
			require.NoError(t, err)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for more := true; more; {
				var err error
				more, err = s.Next(m.add)
				require.NoError(t, err)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			charged, _ := m.budget.Spent()
			held := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			t.Logf("%d bytes of %d are held, %d are charged", held, b.Len(), charged)
			require.Less(t, held, charged)
			require.Less(t, charged, 5*held, "garbage is refunded")
			runtime.KeepAlive(&m)
			runtime.KeepAlive(s)
		})
	}
}
