package trace

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// Table prints memory per training step as an aligned table. The rows are first, second, slowest,
// largest (by peak) and mean of the steps that did not fail, and the last step that failed. The
// columns named own are of the blocks that were allocated with the step's context. Own blocks at
// the end are those that the step has not freed. Peaks are of allocated memory. If there are
// graphs, a column has their memory at the end of the step.
//
// Beneath the rows the table lists the holders of the memory at the peak of the largest step, by
// category and for the three largest modules. It lists the same for each graph that the last step
// with replays has replayed, as captured. Steps that wait for the device are missing: Flush first.
func (p *Profiler) Table(w io.Writer) error { return p.Summary().Table(w) }

// Table prints the summary as [Profiler.Table] does.
func (s Summary) Table(w io.Writer) error {
	if w == nil {
		return fmt.Errorf("trace: Table: %w: the writer is nil", ErrInvalid)
	}
	t := &table{out: tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight), ooms: s.OutOfMemory > 0}
	t.graphs = s.Mean.GraphBytes > 0 || s.Largest.GraphBytes > 0 || s.LastFailed.GraphBytes > 0
	t.collectives = s.Mean.CollectiveTime > 0 || s.LastFailed.CollectiveTime > 0
	if s.WorldSize > 0 {
		if _, err := fmt.Fprintf(w, "rank %d of %d\n", s.Rank, s.WorldSize); err != nil {
			return err
		}
	}
	t.head()
	n := s.succeeded()
	t.row("first", s.First, s.First.HitRate(), n >= 1)
	t.row("second", s.Second, s.Second.HitRate(), n >= 2)
	t.row("slowest", s.Slowest, s.Slowest.HitRate(), n >= 1)
	t.row("largest", s.Largest, s.Largest.HitRate(), n >= 1)
	mean := s.Mean
	mean.Step = n
	t.row("mean of", mean, s.HitRate, n >= 1)
	t.row("failed", s.LastFailed, s.LastFailed.HitRate(), s.Failed >= 1)
	if t.err != nil {
		return t.err
	}
	if err := t.out.Flush(); err != nil {
		return err
	}
	if err := s.holders(w); err != nil {
		return err
	}
	if err := s.replays(w); err != nil {
		return err
	}
	return s.failures(w)
}

// failures prints counts that the table's rows don't have.
func (s Summary) failures(w io.Writer) (err error) {
	if s.Failed > 0 {
		_, err = fmt.Fprintf(w, "steps that failed: %s of %s, the last one was %s\n",
			humanize.Comma(s.Failed), humanize.Comma(s.Steps), humanize.Comma(s.LastFailed.Step))
	}
	if s.Retries > 0 && err == nil {
		_, err = fmt.Fprintf(w, "driver allocations tried again after a flush: %s\n", humanize.Comma(s.Retries))
	}
	if s.OutOfMemory > 0 && err == nil {
		_, err = fmt.Fprintf(w, "requests that ran out of memory: %s\n", humanize.Comma(s.OutOfMemory))
	}
	return err
}

// table is a tabwriter that keeps its first error.
type table struct {
	out         *tabwriter.Writer
	graphs      bool // has the column of what graphs hold
	collectives bool // has the column of the time in collective operations

	ooms bool // has the column of requests that failed
	err  error
}

func (t *table) head() {
	over := []string{"", "allocated", "allocated", "", "own", "own", "", "", "cache", "copied to", "copied to", "host", "device", "device"}
	under := []string{"step", "at start", "at end", "peak", "peak", "at end", "reserved", "allocations", "hits", "device", "host", "time", "time", "busy"}
	if t.graphs {
		over, under = append(over, "held by"), append(under, "graphs")
	}
	if t.collectives {
		over, under = append(over, "in collec-"), append(under, "tives")
	}
	if t.ooms {
		over, under = append(over, "out of"), append(under, "memory")
	}
	t.line("", over...)
	t.line("", under...)
}

func (t *table) line(label string, cells ...string) {
	if t.err != nil {
		return
	}
	_, t.err = fmt.Fprintf(t.out, "%-7s\t", label)
	for _, c := range cells {
		if t.err == nil {
			_, t.err = fmt.Fprint(t.out, c, "\t")
		}
	}
	if t.err == nil {
		_, t.err = fmt.Fprintln(t.out)
	}
}

func (t *table) row(label string, p StepProfile, hitRate float64, present bool) {
	if !present {
		return
	}
	hits, deviceTime, busyTime := "-", "-", "-"
	if p.Allocations > 0 {
		hits = fmt.Sprintf("%.1f%%", 100*hitRate)
	}
	if p.DeviceTimed {
		deviceTime = formatDuration(p.DeviceTime)
	}
	if p.BusyTimed {
		busyTime = formatDuration(p.BusyTime)
	}
	cells := []string{humanize.Comma(p.Step), formatBytes(p.AllocatedStart), formatBytes(p.AllocatedEnd),
		formatBytes(p.AllocatedPeak), formatBytes(p.OwnPeak), formatBytes(p.OwnLive), formatBytes(p.Reserved),
		humanize.Comma(p.Allocations), hits, formatBytes(p.H2DBytes), formatBytes(p.D2HBytes),
		formatDuration(p.HostTime), deviceTime, busyTime}
	if t.graphs {
		cells = append(cells, formatBytes(p.GraphBytes))
	}
	if t.collectives {
		cells = append(cells, formatDuration(p.CollectiveTime))
	}
	if t.ooms {
		cells = append(cells, humanize.Comma(p.OutOfMemory))
	}
	t.line(label, cells...)
}

func formatBytes(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// formatDuration formats three significant digits.
func formatDuration(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
