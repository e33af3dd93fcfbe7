package memtest

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// A golden file has a line for each owner, sorted by name, so that a change of one owner is one
// line of a diff. The first line is the sum.

const header = "# Device memory at the peak, as requested. go test -memtest.update writes this file.\n"

// all is the owner in the line of the sum.
var all = owner{"all", "-"}

func total(amounts map[owner]amount) (sum amount) {
	for _, a := range amounts {
		sum.bytes += a.bytes
		sum.blocks += a.blocks
	}
	return sum
}

// format returns the text of a file.
func format(amounts map[owner]amount) string {
	owners := []owner{}
	for o := range amounts {
		owners = append(owners, o)
	}
	slices.SortFunc(owners, owner.compare)
	var text strings.Builder
	text.WriteString(header)
	out := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(o owner, a amount) { fmt.Fprintf(out, "%d\t%d\t  %v\n", a.bytes, a.blocks, o) }
	fmt.Fprintf(out, "# bytes\tblocks\t  %v\n", columns)
	row(all, total(amounts))
	for _, o := range owners {
		row(o, amounts[o])
	}
	_ = out.Flush() // a strings.Builder never fails
	return text.String()
}

var form = regexp.MustCompile(`^ *(\d+) +(\d+) +(\S+(?: \S+)*)  +(\S.*)$`)

// parse is the reverse of format. It also accepts Windows line ends.
func parse(text string) (map[owner]amount, error) {
	amounts := make(map[owner]amount)
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if line == "" || strings.HasPrefix(strings.TrimLeft(line, " "), "#") {
			continue
		}
		m := form.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("line %d is not bytes, blocks, a category and a module: %q", number, line)
		}
		bytes, err := strconv.ParseInt(m[1], 10, 64)
		blocks, of := strconv.Atoi(m[2])
		if err = cmp.Or(err, of); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		o := owner{m[3], m[4]}
		if _, twice := amounts[o]; twice {
			return nil, fmt.Errorf("line %d: %s of %s appears twice", number, o.category, o.module)
		}
		amounts[o] = amount{bytes, blocks}
	}
	sum, ok := amounts[all]
	delete(amounts, all)
	if !ok || sum != total(amounts) {
		return nil, errors.New("its lines do not add up to the line of all")
	}
	return amounts, nil
}
