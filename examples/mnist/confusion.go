package main

import (
	"fmt"
	"io"
)

// confusion counts what the model said, by the right digit and the one that it saw.
type confusion [classes][classes]int

func (c *confusion) add(right, seen int32) { c[right][seen]++ }

// accuracy is the share on the diagonal; of nothing it is 0.
func (c *confusion) accuracy() float64 {
	right, all := 0, 0
	for i, row := range c {
		right += row[i]
		for _, n := range row {
			all += n
		}
	}
	return float64(right) / float64(max(all, 1))
}

// print is a row for each digit, with the share that was seen as what it is.
func (c *confusion) print(w io.Writer) {
	fmt.Fprintf(w, "\ndigit  ")
	for digit := range c {
		fmt.Fprintf(w, "%6d", digit)
	}
	fmt.Fprintf(w, "   seen as another\n")
	for digit, row := range c {
		all := 0
		fmt.Fprintf(w, "%5d  ", digit)
		for _, n := range row {
			all += n
			if n == 0 {
				fmt.Fprintf(w, "%6s", "·")
			} else {
				fmt.Fprintf(w, "%6d", n)
			}
		}
		fmt.Fprintf(w, "   %.1f %%\n", 100*float64(all-row[digit])/float64(max(all, 1)))
	}
}
