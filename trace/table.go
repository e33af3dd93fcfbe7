package trace

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// Table prints memory per training step as an aligned table with the rows first, second, slowest, largest
// (by peak) and mean. Steps that wait for the device are not in it: Flush first.
func (p *Profiler) Table(w io.Writer) error { return p.Summary().Table(w) }

// Table prints the summary as [Profiler.Table] does.
func (s Summary) Table(w io.Writer) error {
	t := &table{out: tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)}
	t.line("", "", "allocated", "allocated", "", "", "", "cache", "copied to", "copied to", "host", "device")
	t.line("", "step", "at start", "at end", "peak", "reserved", "allocations", "hits", "device", "host", "time", "time")
	t.row("first", s.First, s.First.HitRate(), s.Steps >= 1)
	t.row("second", s.Second, s.Second.HitRate(), s.Steps >= 2)
	t.row("slowest", s.Slowest, s.Slowest.HitRate(), s.Steps >= 1)
	t.row("largest", s.Largest, s.Largest.HitRate(), s.Steps >= 1)
	mean := s.Mean
	mean.Step = s.Steps
	t.row("mean of", mean, s.HitRate, s.Steps >= 1)
	if t.err != nil {
		return t.err
	}
	return t.out.Flush()
}

// table is a tabwriter that keeps its first error.
type table struct {
	out *tabwriter.Writer
	err error
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
	hits, deviceTime := "-", "-"
	if p.Allocations > 0 {
		hits = fmt.Sprintf("%.1f%%", 100*hitRate)
	}
	if p.DeviceTimed {
		deviceTime = formatDuration(p.DeviceTime)
	}
	t.line(label, humanize.Comma(p.Step), formatBytes(p.AllocatedStart), formatBytes(p.AllocatedEnd),
		formatBytes(p.AllocatedPeak), formatBytes(p.Reserved), humanize.Comma(p.Allocations), hits,
		formatBytes(p.H2DBytes), formatBytes(p.D2HBytes), formatDuration(p.HostTime), deviceTime)
}

func formatBytes(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// formatDuration gives three digits.
func formatDuration(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
