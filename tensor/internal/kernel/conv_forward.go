package kernel

import (
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/gemm"
	"github.com/cistern-ml/cistern/tensor/internal/spare"
)

var (
	correlates32 spare.Pool[correlate[float32]]
	correlates64 spare.Pool[correlate[float64]]
)

func correlatesOf[T Float]() *spare.Pool[correlate[T]] {
	return either[*spare.Pool[correlate[T]]](&correlates32, &correlates64)
}

// takeCorrelate returns a correlate without correlations.
func takeCorrelate[T Float]() *correlate[T] {
	c := correlatesOf[T]().Take()
	c.kernel, c.correlations = gemm.KernelOf[T](), c.correlations[:0]
	return c
}

// done clears the arrays and returns c for reuse.
func (c *correlate[T]) done() {
	c.out, c.in, c.weights, c.bias, c.packed, c.slots.elements = nil, nil, nil, nil, nil, nil
	correlatesOf[T]().Give(c)
}

// forward plans the convolution itself.
func (c *correlate[T]) forward(whole *plan.Conv, bias []T) {
	p := flat(whole)
	c.groups, c.images, c.outputs, c.outPixels, c.bias, c.fill = p.Groups, p.N, p.K, p.Places(), bias, false
	c.inElements, c.weightElements = p.C*p.Pixels(), p.K*p.Inner()
	c.correlations = append(c.correlations, correlation{
		sight: sightOf(&p), weightOutput: p.Inner(), weightChannel: p.Taps(), weightTap: [2]int{p.Window[1], 1},
		next: [2]int{p.Out[1], 1}, joined: c.joins(p.Places()),
	})
}

// joins reports whether panels for that many positions per image would be mostly empty, so that
// joining images pays.
func (c *correlate[T]) joins(places int) bool {
	// Tiles of half the columns take half the time.
	half := c.kernel.Columns() / 2
	return c.images > 1 && places < joinedPanels*2*half && places*8 < roundUp(places, half)*7
}

// ConvolveScratch returns the largest number of elements of scratch memory that Convolve uses.
func ConvolveScratch[T Float](p *plan.Conv, bias bool) int {
	c := takeCorrelate[T]()
	defer c.done()
	c.forward(p, someBias[T](bias))
	return c.scratch()
}

// someBias returns a placeholder for a bias while a plan is made.
func someBias[T Float](bias bool) []T {
	if bias {
		return []T{}
	}
	return nil
}

// Convolve sets y to the convolution of x, plus the bias of each channel unless bias is nil.
func Convolve[T Float](p *plan.Conv, y, x, w, bias, scratch []T) {
	c := takeCorrelate[T]()
	defer c.done()
	c.forward(p, bias)
	c.out, c.in, c.weights = y, x, w
	c.run(scratch)
}
