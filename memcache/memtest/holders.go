package memtest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/cistern-ml/cistern/internal/callframe"
	"github.com/cistern-ml/cistern/memcache"
)

// amount is a number of blocks with their bytes.
type amount struct {
	bytes  int64
	blocks int
}

// owner is the purpose of memory.
type owner struct{ category, module string }

// columns are the column headings of an owner.
var columns = owner{"category", "module"}

func ownerOf(h memcache.Holding) owner {
	module := h.Module
	switch {
	case module == "":
		module = "-"
	case module == "-" || strconv.Quote(module) != `"`+module+`"` || strings.TrimSpace(module) != module:
		module = strconv.Quote(module)
	}
	return owner{h.Category.String(), module}
}

// String returns the last two columns of a table.
func (o owner) String() string { return fmt.Sprintf("%-15s  %s", o.category, o.module) }

func (o owner) compare(other owner) int {
	return cmp.Or(cmp.Compare(o.category, other.category), cmp.Compare(o.module, other.module))
}

// lineOf returns the line of the program that allocated the memory.
func lineOf(h memcache.Holding) string {
	if len(h.Stack) == 0 {
		return "before stacks were kept"
	}
	f := callframe.Line(h.Stack)
	return callframe.Place(f.Function, f.File, f.Line)
}

// sum sums holdings by key.
func sum[K comparable](all []memcache.Holding, key func(memcache.Holding) K) map[K]amount {
	sums := make(map[K]amount)
	for _, h := range all {
		a := sums[key(h)]
		a.bytes += h.Bytes
		a.blocks += h.Blocks
		sums[key(h)] = a
	}
	return sums
}

// mostRows bounds each table of a failure.
const mostRows = 30

// holders formats holdings as two tables: by owner, then by line.
func holders(all []memcache.Holding) string {
	var text strings.Builder
	table(&text, "bytes\tblocks\t  "+columns.String(), sum(all, ownerOf), owner.compare, func(o owner, a amount) string {
		return fmt.Sprintf("%d\t%d\t  %v", a.bytes, a.blocks, o)
	})
	lines(&text, all)
	return text.String()
}

// lines formats holdings as a table by line.
func lines(text *strings.Builder, all []memcache.Holding) {
	table(text, "bytes\tblocks\t  line", sum(all, lineOf), strings.Compare, func(line string, a amount) string {
		return fmt.Sprintf("%d\t%d\t  %s", a.bytes, a.blocks, line)
	})
}

// table writes a row for each key, the largest amounts first.
func table[K comparable](text *strings.Builder, heading string, amounts map[K]amount, compare func(a, b K) int, row func(K, amount) string) {
	keys := make([]K, 0, len(amounts))
	for k := range amounts {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b K) int {
		return cmp.Or(-cmp.Compare(size(amounts[a].bytes), size(amounts[b].bytes)), compare(a, b))
	})
	out := tabwriter.NewWriter(text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, heading)
	for _, k := range keys[:min(len(keys), mostRows)] {
		fmt.Fprintln(out, row(k, amounts[k]))
	}
	_ = out.Flush() // a strings.Builder never fails
	if more := len(keys) - mostRows; more > 0 {
		fmt.Fprintf(text, "  and %d smaller ones\n", more)
	}
}

// size returns the absolute number of bytes; a difference may be negative.
func size(n int64) int64 { return max(n, -n) }
