package ranks

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// duration formats three significant digits.
func duration(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// per formats a part of a time or size as a percentage.
func per[T int64 | time.Duration](part, of T) string {
	if of <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(of))
}

// Table writes the headline, a row for each rank, and the notes.
func (r *Report) Table(w io.Writer) error {
	if w == nil {
		return fmt.Errorf("ranks: Table: %w: the writer is nil", ErrInvalid)
	}
	if _, err := fmt.Fprintf(w, "%s\n", r.Headline()); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	// Flush returns the errors.
	fmt.Fprintln(t, "rank\tsteps\thost time\tin collectives\twaited\theld others up\tlast in operations\tlast in steps\tp\tallocated peak\treserved peak\t")
	for i, x := range r.Ranks {
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t%s\t%d\t%d\t%.2g\t%s\t%s\t\n", i, x.Steps, duration(x.HostTime), duration(x.CollectiveTime),
			duration(x.Waited), duration(x.HeldUp), x.Last, x.LastSteps, x.P, size(x.AllocatedPeak), size(x.ReservedPeak))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range r.Notes {
		if _, err := fmt.Fprintln(w, note); err != nil {
			return err
		}
	}
	return nil
}
