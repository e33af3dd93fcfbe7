package cli

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// table aligns rows of cells that are separated by tabs, below a head. Without rows it prints
// nothing. Its writer keeps the first error.
type table struct {
	to   io.Writer
	out  *tabwriter.Writer
	head string
}

func newTable(w io.Writer, head string) *table {
	return &table{w, tabwriter.NewWriter(w, 0, 0, 2, ' ', 0), head + "\n"}
}

func (t *table) row(format string, cells ...any) {
	fmt.Fprint(t.out, t.head)
	t.head = ""
	for i, c := range cells {
		if text, ok := c.(string); ok {
			cells[i] = printable(text)
		}
	}
	fmt.Fprintf(t.out, format, cells...)
}

// end prints lines below the table.
func (t *table) end(lines []string) {
	_ = t.out.Flush()
	for _, l := range lines {
		fmt.Fprintln(t.to, printable(l))
	}
}
