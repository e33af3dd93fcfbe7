package kernel

import (
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/gemm"
	"github.com/cistern-ml/cistern/tensor/internal/spare"
	"github.com/cistern-ml/cistern/tensor/internal/workers"
)

// The gradient of the weights is, for each group, dy x what its elements saw of x, over the
// positions of all images. So the inner dimension is long compared with the result. It is cut into
// parts, whose number depends only on the plan, and the parts are summed in order. A part of a
// block of the weights is a unit of work, which makes panels of both factors as it proceeds.

// weightGrad is a gradient of the weights that is being computed.
type weightGrad[T Float] struct {
	sight
	kernel          gemm.Kernel[T]
	groups, outputs int
	places          int // of all images
	parts           int
	// rows is the number of outputs of a unit, and cols the number of panels of what positions see.
	rows, cols           int
	rowBlocks, colBlocks int
	dw, dy, in           []T
	sums                 []T // the sums of the parts, each like dw, if there are several
	slots                slots[T]
	turned               int // rows of images in a slot, or 0
}

const (
	partialElements = 256 << 10 // of all parts' sums, approximately
	mostParts       = 8
	unitRows        = 10 // panels of a unit
	unitCols        = 9
	sumElements     = 8 << 10 // of a unit of work that sums parts
)

var (
	weightGrads32 spare.Pool[weightGrad[float32]]
	weightGrads64 spare.Pool[weightGrad[float64]]
)

func weightGradsOf[T Float]() *spare.Pool[weightGrad[T]] {
	return either[*spare.Pool[weightGrad[T]]](&weightGrads32, &weightGrads64)
}

func takeWeightGrad[T Float](whole *plan.Conv) *weightGrad[T] {
	p := flat(whole)
	c := weightGradsOf[T]().Take()
	c.kernel, c.sight = gemm.KernelOf[T](), sightOf(&p)
	c.groups, c.outputs, c.places = p.Groups, p.K, p.N*p.Places()
	c.parts = min(max(1, partialElements/p.Weights()), mostParts, max(1, c.places/convDepth(c.kernel)))
	rows, cols := tilesOf(c.outputs, c.kernel.Rows()), tilesOf(c.inner(), c.kernel.Columns())
	c.rowBlocks, c.colBlocks = tilesOf(rows, unitRows), tilesOf(cols, unitCols)
	c.rows, c.cols = tilesOf(c.outputs, c.rowBlocks), tilesOf(cols, c.colBlocks)
	c.turned = turnedOf(&c.sight, c.kernel)
	return c
}

func (c *weightGrad[T]) done() {
	c.dw, c.dy, c.in, c.sums, c.slots.elements = nil, nil, nil, nil, nil
	weightGradsOf[T]().Give(c)
}

// weights returns the number of elements of dw.
func (c *weightGrad[T]) weights() int { return c.groups * c.outputs * c.inner() }

func (c *weightGrad[T]) work() int { return c.places * c.weights() }

// lay returns the number of elements of the parts' sums and of a slot. A slot holds panels of dy,
// one panel of what positions see, the result, and transposed rows.
func (c *weightGrad[T]) lay() (sums, slot int) {
	if c.parts > 1 {
		sums = c.parts * c.weights()
	}
	width := c.kernel.Columns()
	return sums, (c.rows+width)*convDepth(c.kernel) + c.rows*c.cols*width + c.turnedElements()
}

func (c *weightGrad[T]) turnedElements() int { return c.turned * c.sight.in[1] * c.kernel.Columns() }

// WeightGradScratch returns the largest number of elements of scratch memory that
// ConvolveWeightGrad uses.
func WeightGradScratch[T Float](p *plan.Conv, _ bool) int {
	c := takeWeightGrad[T](p)
	defer c.done()
	sums, slot := c.lay()
	return sums + min(convWorkers, c.kernel.Goroutines(c.work()))*slot
}

// ConvolveWeightGrad sets dw to the gradient of the weights.
func ConvolveWeightGrad[T Float](p *plan.Conv, dw, dy, x, scratch []T) {
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

// Units implements workers.Job.
func (c *weightGrad[T]) Units(phase int) int {
	if phase == 0 {
		return c.parts * c.groups * c.rowBlocks * c.colBlocks
	}
	if c.parts == 1 {
		return 0
	}
	return tilesOf(c.weights(), sumElements)
}

// Run implements workers.Job.
func (c *weightGrad[T]) Run(phase, unit int) {
	if phase == 0 {
		slot, tmp := c.slots.take()
		c.compute(tmp, unit)
		c.slots.give(slot)
		return
	}
	c.sum(unit*sumElements, min(unit*sumElements+sumElements, c.weights()))
}

// compute computes a part of a block of the weights.
func (c *weightGrad[T]) compute(tmp []T, unit int) {
	col, unit := unit%c.colBlocks, unit/c.colBlocks
	row, unit := unit%c.rowBlocks, unit/c.rowBlocks
	group, part := unit%c.groups, unit/c.groups
	row, next := row*c.outputs/c.rowBlocks, (row+1)*c.outputs/c.rowBlocks
	width, inner := c.kernel.Columns(), c.inner()
	item := col * c.cols * width
	items := min(c.cols*width, inner-item)
	first, last := part*c.places/c.parts, (part+1)*c.places/c.parts
	b := weightBlock[T]{group: group, row: row, rows: next - row, item: item, items: items, panels: tmp}
	rest := tmp[(c.rows+width)*convDepth(c.kernel):]
	b.out, rest = rest[:c.rows*c.cols*width], rest[c.rows*c.cols*width:]
	b.turned.rows, b.turned.each = rest[:c.turnedElements()], c.sight.in[1]*width
	b.turned.begin(0)
	for from := first; from < last; from += convDepth(c.kernel) {
		c.add(&b, from, min(convDepth(c.kernel), last-from), from > first)
	}
	to := c.dw
	if c.parts > 1 {
		to = c.sums[part*len(c.dw):]
	}
	for j := range items {
		tap, channel := c.item(item + j)
		at := (group*c.outputs+row)*inner + channel*c.taps[0]*c.taps[1] + tap
		for i := range b.rows {
			to[at+i*inner] = b.out[i*c.cols*width+j]
		}
	}
}

// item returns the tap and channel of item i. With transposed rows, a panel of channels has all its
// taps one after the other.
func (c *weightGrad[T]) item(i int) (tap, channel int) {
	if c.turned == 0 {
		return i / c.channels, i % c.channels
	}
	width, taps := c.kernel.Columns(), c.taps[0]*c.taps[1]
	panel := i / width
	return panel % taps, panel/taps*width + i%width
}

// weightBlock is a block of the weights: outputs of a group, and items of what places see.
type weightBlock[T Float] struct {
	group, row, rows, item, items int
	panels, out                   []T
	turned                        turned[T]
}

// add adds the contributions of depth positions, starting at from, to a block.
func (c *weightGrad[T]) add(b *weightBlock[T], from, depth int, add bool) {
	width := c.kernel.Columns()
	panels := tilesOf(b.rows, c.kernel.Rows())
	for i := range panels {
		begin, end := i*b.rows/panels, (i+1)*b.rows/panels
		c.outputsPanel(b.panels[begin*depth:], b.group, b.row+begin, end-begin, from, depth)
	}
	pixels := c.pixels()
	images, stride := c.in[min(len(c.in), b.group*c.channels*pixels):], c.groups*c.channels*pixels
	seen := b.panels[c.rows*convDepth(c.kernel):]
	for j := 0; j < b.items; j += width {
		n := min(width, b.items-j)
		if c.turned > 0 {
			tap, channel := c.item(b.item + j)
			if b.turned.channel != channel {
				b.turned.begin(channel)
			}
			b.turned.panel(c.kernel, &c.sight, seen, images[min(len(images), channel*pixels):], stride, from, depth, tap)
		} else {
			rowsPanel(c.kernel, &c.sight, seen, images, stride, from, depth, b.item+j, n)
		}
		for i := range panels {
			begin, end := i*b.rows/panels, (i+1)*b.rows/panels
			c.kernel.Tile(end-begin, n, b.out[begin*c.cols*width+j:], c.cols*width, b.panels[begin*depth:], 1, end-begin, seen, depth, add)
		}
	}
}

// outputsPanel fills a panel of dy.
func (c *weightGrad[T]) outputsPanel(dst []T, group, row, rows, from, depth int) {
	places := c.sight.places()
	for at := 0; at < depth; {
		image, place := (from+at)/places, (from+at)%places
		n := min(depth-at, places-place)
		gemm.Panel(c.kernel.Level(), dst[at*rows:], rows, c.dy[((image*c.groups+group)*c.outputs+row)*places+place:], places, 1, n, rows)
		at += n
	}
}

// sum adds the parts of the weights from to to.
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
