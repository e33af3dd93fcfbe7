package cli

import (
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/trace/diff"
)

// compared is cistern diff.
type compared struct {
	Before string `arg:"" predictor:"file" help:"A recording, a snapshot, profiles of steps or a heap profile; - is the standard input."`
	After  string `arg:"" predictor:"file" help:"Another one, of any of these kinds."`
	Output string `short:"o" placeholder:"FILE" predictor:"file" help:"Write an HTML page, too."`
	JSON   bool   `help:"Print a JSON object for each device."`
	Title  string `help:"The page's title (default: the names of the files)."`
	limits
}

func (*compared) example() string { return "cistern diff -o diff.html before.pickle after.pickle" }

// Validate is called by kong.
func (c *compared) Validate() error {
	if c.JSON && c.onStdout() {
		return fmt.Errorf("--json and --output %s both go to the standard output; give the page a file", c.Output)
	}
	if c.Before == "-" && c.After == "-" {
		return errors.New("both files are the standard input; name one of them")
	}
	return nil
}

// onStdout reports whether the page goes to the standard output.
func (c *compared) onStdout() bool { return c.Output == "-" || output.IsStandard(c.Output) }

// Run compares the files.
func (c *compared) Run(e *env) error {
	if err := output.Check(c.Output, c.Before, c.After); err != nil {
		return err
	}
	var files [2]diff.File
	for i, file := range []string{c.Before, c.After} {
		name, in, err := e.open(file)
		if err != nil {
			return err
		}
		defer in.Close()
		files[i] = diff.File{Name: name, Reader: in}
	}
	if files[0].Name == files[1].Name {
		files[0].Name, files[1].Name = filepath.Clean(c.Before), filepath.Clean(c.After)
	}
	list, err := diff.Read(diff.Options{MaxMemory: int64(c.MaxMemory), MaxWork: c.MaxWork}, files[0], files[1])
	if err != nil {
		return err
	}
	if c.Output != "" {
		title := c.Title
		if title == "" {
			title = files[0].Name + " → " + files[1].Name
		}
		if err := e.write(c.Output, func(w io.Writer) error { return diff.Write(w, title, list...) }); err != nil {
			return err
		}
	}
	for i, d := range list {
		switch {
		case c.JSON:
			e.printJSON(d)
		case !c.onStdout():
			if i > 0 {
				fmt.Fprintln(e.stdout)
			}
			printDiff(e.stdout, d)
		}
	}
	return nil
}

// mostRows bounds the rows of growth, and those of shrinkage, in a table.
const mostRows = 10

// printDiff prints a difference for people. w keeps the first error.
func printDiff(w io.Writer, d *diff.Diff) {
	fmt.Fprintf(w, "%s → %s\n\n", printable(d.Before), printable(d.After))
	printRows(w, "", d.Peaks)
	for _, x := range d.Dimensions {
		if len(x.Rows) > 0 {
			fmt.Fprintln(w)
			printDimension(w, x)
		}
	}
	if d.Equal() {
		fmt.Fprintln(w, "\nno difference")
	}
	if notes := slices.Concat(d.Notes, missing(d)); len(notes) > 0 {
		fmt.Fprintln(w)
		for _, n := range notes {
			fmt.Fprintln(w, printable(n))
		}
	}
}

// printDimension prints the rows that grew and shrank most, and the number of omitted rows.
func printDimension(w io.Writer, x diff.Dimension) {
	grown, shrunk, left := 0, 0, int64(0)
	var rows []diff.Row
	for _, r := range x.Rows {
		n := &grown
		if r.Bytes() <= 0 {
			n = &shrunk
		}
		if *n++; *n <= mostRows {
			rows = append(rows, r)
		} else {
			left += r.Bytes()
		}
	}
	printRows(w, x.Name, rows)
	together, equal := ", "+signed(left)+" together", ", "+humanize.IBytes(uint64(x.EqualBytes))
	if x.Name == "step" { // peaks cannot be added up
		together, equal = "", ""
	}
	if n := len(x.Rows) - len(rows); n > 0 {
		fmt.Fprintf(w, "%s more differ%s\n", humanize.Comma(int64(n)), together)
	}
	if x.Equal > 0 {
		fmt.Fprintf(w, "%s without a difference%s\n", humanize.Comma(int64(x.Equal)), equal)
	}
}

// missing returns a line for each reason why dimensions are not compared.
func missing(d *diff.Diff) (lines []string) {
	names := make(map[string][]string)
	for _, x := range d.Dimensions {
		names[x.Missing] = append(names[x.Missing], x.Name)
	}
	for _, x := range d.Dimensions {
		if list := names[x.Missing]; x.Missing != "" && list[0] == x.Name {
			lines = append(lines, fmt.Sprintf("not compared by %s: %s", strings.Join(list, " and "), x.Missing))
		}
	}
	return lines
}

// printRows prints rows under the name of their dimension.
func printRows(w io.Writer, name string, rows []diff.Row) {
	blocks := slices.ContainsFunc(rows, func(r diff.Row) bool { return r.Before.Blocks+r.After.Blocks > 0 })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	cell, head := "", ""
	if blocks {
		head = "blocks\t"
	}
	title := ""
	if name != "" {
		title = "  " + name
	}
	fmt.Fprintf(t, "difference\t\tbefore\tafter\t%s%s\n", head, title)
	for _, r := range rows {
		if blocks {
			cell = change(r.Before.Blocks, r.After.Blocks) + "\t"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s  %s\n", signed(r.Bytes()), relative(r), humanize.IBytes(uint64(r.Before.Bytes)),
			humanize.IBytes(uint64(r.After.Bytes)), cell, printable(holder(name, r)))
	}
	_ = t.Flush()
}

func change(before, after int64) string {
	if before == after {
		return strconv.FormatInt(after, 10)
	}
	return fmt.Sprintf("%d → %d", before, after)
}

// signed formats a difference in bytes for people.
func signed(n int64) string {
	switch {
	case n > 0:
		return "+" + humanize.IBytes(uint64(n))
	case n < 0:
		return "-" + humanize.IBytes(uint64(-n))
	}
	return "0 B"
}

// relative formats a difference in percent of the amount before.
func relative(r diff.Row) string {
	switch {
	case r.Bytes() == 0:
		return ""
	case r.Before.Bytes == 0:
		return "new"
	case r.After.Bytes == 0:
		return "gone"
	}
	return fmt.Sprintf("%+.1f %%", 100*float64(r.Bytes())/float64(r.Before.Bytes))
}

// holder formats the name of a row.
func holder(dimension string, r diff.Row) string {
	switch {
	case r.Name == "" && dimension == "line":
		return "(unknown)"
	case r.Name == "":
		return "(none)"
	case r.File == "":
		return r.Name
	case r.Was != 0:
		return fmt.Sprintf("%s %s:%d → %d", path.Base(r.Name), path.Base(r.File), r.Was, r.Line)
	}
	return fmt.Sprintf("%s %s:%d", path.Base(r.Name), path.Base(r.File), r.Line)
}
