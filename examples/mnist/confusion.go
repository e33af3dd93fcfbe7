package main

import (
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/autograd/metric"
)

// printConfusion prints a row for each digit, with the share that was seen as what it is.
func printConfusion(w io.Writer, c metric.Matrix) {
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
