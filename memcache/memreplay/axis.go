package main

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
)

// drawBytes draws the axis of memory, up to most bytes or somewhat more, which it returns.
func drawBytes(b *bytes.Buffer, most int64) (top int64) {
	step := powerStep(most)
	top = (most + step - 1) / step * step
	unit, name := int64(1), "B"
	for _, n := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if top < unit<<11 {
			break
		}
		unit, name = unit<<10, n
	}
	for v := int64(0); v <= top; v += step {
		y, class, mark := scaleY(v, top), "grid", strconv.FormatFloat(float64(v)/float64(unit), 'g', 4, 64)+" "+name
		if v == 0 {
			class, mark = "axis", "0"
		}
		fmt.Fprintf(b, `<path class="%s" d="M0 %.1fH%d"/><text class="faint" x="-8" y="%.1f" text-anchor="end" dy="4">%s</text>`+"\n",
			class, y, plotWidth, y, mark)
	}
	fmt.Fprintf(b, `<text class="faint" transform="translate(-68,%d) rotate(-90)" text-anchor="middle">memory</text>`+"\n", plotHeight/2)
	return top
}

// drawCalls draws the axis of calls.
func drawCalls(b *bytes.Buffer, calls int) {
	step := decimalStep(calls)
	for v := 0; v <= calls; v += step {
		x := scaleX(v, calls)
		fmt.Fprintf(b, `<path class="axis" d="M%.1f %dv5"/><text class="faint" x="%.1[1]f" y="%[3]d" text-anchor="middle">%[4]s</text>`+"\n",
			x, plotHeight, plotHeight+18, thousands(v))
	}
	fmt.Fprintf(b, `<text class="faint" x="%d" y="%d" text-anchor="middle">calls: allocations and frees</text>`+"\n", plotWidth/2, plotHeight+36)
}

func scaleX(call, calls int) float64 { return float64(call) / float64(max(calls, 1)) * plotWidth }

func scaleY(v, top int64) float64 { return plotHeight * (1 - float64(v)/float64(top)) }

// powerStep is a distance between marks, a power of two, of which four to eight fit below most.
func powerStep(most int64) int64 {
	return max(1, int64(math.Exp2(math.Floor(math.Log2(float64(most)))))/4)
}

// decimalStep is a distance between marks, 1, 2 or 5 times a power of ten, of which at most ten fit below most.
func decimalStep(most int) int {
	for unit := 1; ; unit *= 10 {
		for _, n := range []int{1, 2, 5} {
			if most/(n*unit) <= 10 {
				return n * unit
			}
		}
	}
}

// thousands separates groups of three digits.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
