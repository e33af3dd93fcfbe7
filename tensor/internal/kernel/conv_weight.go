package kernel

import (
	"github.com/cistern-ml/cistern/tensor/internal/gemm"
	"github.com/cistern-ml/cistern/tensor/internal/workers"
)

// The gradient of the weights is, for each group, dy x what its elements saw of x, over the places of all images: an inner
// dimension that is long beside the result. It is cut into parts, whose number depends on the plan alone, which are summed in
// order. A part of a block of the weights is a unit of work, which makes panels of both factors as it goes along.

// weightGrad is a gradient of the weights being done.
type weightGrad[T Float] struct {
	sight
	kernel               gemm.Kernel[T]
	groups, outputs      int
	places               int // of all images
	parts                int
	rows, cols           int // outputs, and panels of what places see, of a unit
	rowBlocks, colBlocks int
	dw, dy, in           []T
	sums                 []T // of the parts, each as dw, if there are several
	slots                slots[T]
	strips               int
}

const (
	partialElements = 256 << 10 // of sums, about
	mostParts       = 8
	unitRows        = 10 // panels of a unit
	unitCols        = 5
	sumElements     = 8 << 10 // of a unit of work that sums parts
)

var (
	weightGrads32 spares[weightGrad[float32]]
	weightGrads64 spares[weightGrad[float64]]
)

func weightGradsOf[T Float]() *spares[weightGrad[T]] {
	if s, ok := any(&weightGrads32).(*spares[weightGrad[T]]); ok {
		return s
	}
	return any(&weightGrads64).(*spares[weightGrad[T]])
}

func takeWeightGrad[T Float](plan *Conv) *weightGrad[T] {
	p := plan.flat()
	c := weightGradsOf[T]().take()
	c.kernel, c.sight = gemm.KernelOf[T](), p.sight()
	c.groups, c.outputs, c.places = p.Groups, p.K, p.N*p.Places()
	c.parts = min(max(1, partialElements/p.weights()), mostParts, max(1, c.places/convDepth(c.kernel)))
	rows, cols := tilesOf(c.outputs, c.kernel.Rows()), tilesOf(c.inner(), c.kernel.Columns())
	c.rowBlocks, c.colBlocks = tilesOf(rows, unitRows), tilesOf(cols, unitCols)
	c.rows, c.cols = tilesOf(c.outputs, c.rowBlocks), tilesOf(cols, c.colBlocks)
	return c
}

func (c *weightGrad[T]) done() {
	c.dw, c.dy, c.in, c.sums, c.slots.elements = nil, nil, nil, nil, nil
	weightGradsOf[T]().give(c)
}

// weights is the number of elements of dw.
func (c *weightGrad[T]) weights() int { return c.groups * c.outputs * c.inner() }

func (c *weightGrad[T]) work() int { return c.places * c.weights() }

// lay returns the elements of the parts' sums and of a slot: panels of dy, one of what places see, and the result.
func (c *weightGrad[T]) lay() (sums, slot int) {
	if c.parts > 1 {
		sums = c.parts * c.weights()
	}
	width := c.kernel.Columns()
	return sums, (c.rows+width)*convDepth(c.kernel) + c.rows*c.cols*width
}

// WeightGradScratch is the number of elements of scratch memory that ConvolveWeightGrad takes at most.
func WeightGradScratch[T Float](p *Conv) int {
	c := takeWeightGrad[T](p)
	defer c.done()
	sums, slot := c.lay()
	return sums + min(convWorkers, c.kernel.Goroutines(c.work()))*slot
}

// ConvolveWeightGrad sets dw to the gradient of the weights.
func ConvolveWeightGrad[T Float](p *Conv, dw, dy, x, scratch []T) {
	c := takeWeightGrad[T](p)
	defer c.done()
	c.dw, c.dy, c.in = dw, dy, x
	sums, slot := c.lay()
	if len(scratch) < sums+slot {
		scratch = make([]T, sums+slot)
	}
	c.sums = scratch[:sums]
	slots := c.slots.divide(scratch[sums:], slot)
	workers.Do(c, 2, min(slots, c.kernel.Goroutines(c.work()))-1)
}

// Units is for package workers.
func (c *weightGrad[T]) Units(phase int) int {
	if phase == 0 {
		return c.parts * c.groups * c.rowBlocks * c.colBlocks
	}
	if c.parts == 1 {
		return 0
	}
	return tilesOf(c.weights(), sumElements)
}

// Run is for package workers.
func (c *weightGrad[T]) Run(phase, unit int) {
	if phase == 0 {
		slot, tmp := c.slots.take()
		c.compute(tmp, unit)
		c.slots.give(slot)
		return
	}
	c.sum(unit*sumElements, min(unit*sumElements+sumElements, c.weights()))
}

// compute does a part of a block of the weights.
func (c *weightGrad[T]) compute(tmp []T, unit int) {
	col, unit := unit%c.colBlocks, unit/c.colBlocks
	row, unit := unit%c.rowBlocks, unit/c.rowBlocks
	group, part := unit%c.groups, unit/c.groups
	row, next := row*c.outputs/c.rowBlocks, (row+1)*c.outputs/c.rowBlocks
	width, inner := c.kernel.Columns(), c.inner()
	item := col * c.cols * width
	items := min(c.cols*width, inner-item)
	out := tmp[(c.rows+width)*convDepth(c.kernel):]
	first, last := part*c.places/c.parts, (part+1)*c.places/c.parts
	for from := first; from < last; from += convDepth(c.kernel) {
		c.block(tmp, out, group, row, next-row, item, items, from, min(convDepth(c.kernel), last-from), from > first)
	}
	to := c.dw
	if c.parts > 1 {
		to = c.sums[part*len(c.dw):]
	}
	taps := c.taps[0] * c.taps[1]
	for i := range next - row {
		line := to[(group*c.outputs+row+i)*inner:][:inner]
		tap, channel := item/c.channels, item%c.channels
		for _, v := range out[i*c.cols*width:][:items] {
			line[channel*taps+tap] = v
			if channel++; channel == c.channels {
				tap, channel = tap+1, 0
			}
		}
	}
}

// block adds what depth places from from on give to a block of the weights.
func (c *weightGrad[T]) block(tmp, out []T, group, row, rows, item, items, from, depth int, add bool) {
	width, most := c.kernel.Columns(), c.kernel.Rows()
	panels := tilesOf(rows, most)
	for i := range panels {
		begin, end := i*rows/panels, (i+1)*rows/panels
		c.outputsPanel(tmp[begin*depth:], group, row+begin, end-begin, from, depth)
	}
	images, stride := c.in[min(len(c.in), group*c.channels*c.pixels()):], c.groups*c.channels*c.pixels()
	seen := tmp[c.rows*convDepth(c.kernel):]
	for j := 0; j < items; j += width {
		n := min(width, items-j)
		rowsPanel(c.kernel, &c.sight, seen, images, stride, from, depth, item+j, n)
		for i := range panels {
			begin, end := i*rows/panels, (i+1)*rows/panels
			c.kernel.Tile(end-begin, n, out[begin*c.cols*width+j:], c.cols*width, tmp[begin*depth:], 1, end-begin, seen, depth, add)
		}
	}
}

// outputsPanel makes a panel of dy.
func (c *weightGrad[T]) outputsPanel(dst []T, group, row, rows, from, depth int) {
	places := c.sight.places()
	for at := 0; at < depth; {
		image, place := (from+at)/places, (from+at)%places
		n := min(depth-at, places-place)
		gemm.Panel(c.kernel.Level(), dst[at*rows:], rows, c.dy[((image*c.groups+group)*c.outputs+row)*places+place:], places, 1, n, rows)
		at += n
	}
}

// sum adds the parts of some weights.
func (c *weightGrad[T]) sum(from, to int) {
	n := len(c.dw)
	for i := from; i < to; i++ {
		sum := 0.0
		for part := range c.parts {
			sum += float64(c.sums[part*n+i])
		}
		c.dw[i] = T(sum)
	}
}
