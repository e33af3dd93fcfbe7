package cli

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// table prints rows with tabs between their cells aligned, below a head; without rows it prints nothing.
type table struct {
	out  *tabwriter.Writer
	head string
}

func newTable(w io.Writer, head string) *table {
	return &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0), head + "\n"}
}

// row adds a row. An error of the writer comes again from out.Flush.
func (t *table) row(format string, cells ...any) {
	fmt.Fprint(t.out, t.head)
	t.head = ""
	fmt.Fprintf(t.out, format, cells...)
}
