package memcache

import (
	"fmt"
	"strings"
)

// The table of torch.cuda.memory_summary, identical except for the device in the head, so that
// readers and tools for one can read the other. Golden files made by PyTorch verify it.

// Summary returns the statistics as the table of torch.cuda.memory_summary, with the device's name
// instead of its number. [Stats.Summary] also has the abbreviated form.
func (c *Cache) Summary() string { return c.Stats().Summary(c.dev.Name(), false) }

// Summary returns the table of torch.cuda.memory_summary for the device of this name. The
// abbreviated form has one line for each quantity instead of three: it omits the lines of the large
// and the small pool.
func (s Stats) Summary(device string, abbreviated bool) string {
	var t strings.Builder
	line := func(text string) { fmt.Fprintf(&t, "|%-75s|\n", text) }
	rule := func(char string) { line(strings.Repeat(char, 75)) }

	rule("=")
	line(fmt.Sprintf("                  PyTorch CUDA memory summary, device %-20s ", device))
	rule("-")
	line(fmt.Sprintf("            CUDA OOMs: %-12d |        cudaMalloc retries: %-8d  ", s.NumOOMs, s.NumAllocRetries))
	rule("=")
	line("        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ")
	for _, q := range []struct {
		name string
		of   StatArray
		cell func(v, reference int64) string
	}{
		{"Allocated memory", s.AllocatedBytes, sizeCell},
		{"Active memory", s.ActiveBytes, sizeCell},
		{"Requested memory", s.RequestedBytes, sizeCell},
		{"GPU reserved memory", s.ReservedBytes, sizeCell},
		{"Non-releasable memory", s.InactiveSplitBytes, sizeCell},
		{"Allocations", s.Allocation, countCell},
		{"Active allocs", s.Active, countCell},
		{"GPU reserved segments", s.Segment, countCell},
		{"Non-releasable allocs", s.InactiveSplit, countCell},
	} {
		rule("-")
		line(row(q.name, q.of.All, q.of.All, q.cell))
		if !abbreviated {
			line(row("      from large pool", q.of.LargePool, q.of.All, q.cell))
			line(row("      from small pool", q.of.SmallPool, q.of.All, q.cell))
		}
	}
	for _, q := range []struct {
		name string
		of   Stat
	}{{"Oversize allocations", s.OversizeAllocations}, {"Oversize GPU segments", s.OversizeSegments}} {
		rule("-")
		line(row(q.name, q.of, q.of, countCell))
	}
	rule("=")
	return t.String()
}

// row formats one line; the reference's values determine the unit of each cell.
func row(name string, s, reference Stat, cell func(v, reference int64) string) string {
	return fmt.Sprintf(" %-21s | %s | %s | %s | %s ", name,
		cell(s.Current, reference.Current), cell(s.Peak, reference.Peak),
		cell(s.Allocated, reference.Allocated), cell(s.Freed, reference.Freed))
}

// sizeCell formats a number of bytes in the unit for the reference.
func sizeCell(v, reference int64) string {
	v, unit := scale(v, reference, 768*1024, 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"})
	return fmt.Sprintf("%6d %-3s", v, unit)
}

// countCell formats a count in the unit for the reference.
func countCell(v, reference int64) string {
	v, unit := scale(v, reference, 750_000, 1000, []string{" ", "K", "M"})
	return fmt.Sprintf("%7d %s ", v, unit)
}

// scale divides v until the reference is below the threshold or the units run out.
func scale(v, reference, threshold, divisor int64, units []string) (int64, string) {
	// The first cell determines the unit of a whole row, so that the cells can be compared.
	i := 0
	for ; i < len(units)-1 && reference >= threshold; i++ {
		v /= divisor
		reference /= divisor
	}
	return v, units[i]
}
