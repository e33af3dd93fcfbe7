package kernel

import (
	"unsafe"

	"github.com/cistern-ml/cistern/tensor/internal/gemm"
	"github.com/cistern-ml/cistern/tensor/internal/workers"
)

// A correlation is out = weights x what the positions see of in, for every image and group: a
// convolution, or a part of the gradient of its argument. The weights are packed once for all
// images. A strip of positions consists of a few panels and is computed by one goroutine: it makes
// the panels, and multiplies all weights by them while they are in its caches.

// correlation is the plan of one correlation.
type correlation struct {
	sight
	// Element (output, tap (r, s), channel) of a group's weights is at weight + output*weightOutput
	// + channel*weightChannel + r*weightTap[0] + s*weightTap[1].
	weight, weightOutput, weightChannel int
	weightTap                           [2]int
	// Position (i, j) of a channel of out is at first + i*next[0] + j*next[1].
	first int
	next  [2]int
	// joined is set if panels continue from image to image, or if positions are not consecutive in
	// out. Then tiles are computed in scratch memory and copied to out.
	joined bool

	packed  int // offset of the first group's packed weights
	strips  int // of an image, or of all if joined
	unit    int // its first unit of work
	perUnit int // strips
}

// correlate runs correlations that together compute all elements of out.
type correlate[T Float] struct {
	correlations         []correlation
	kernel               gemm.Kernel[T]
	groups, images       int
	outputs, outPixels   int  // channels of a group, elements of a channel of out
	inElements           int  // of an image of a group
	weightElements       int  // of a group
	bias                 []T  // of out's channels, or nil
	fill                 bool // some elements of out belong to no correlation
	panels               int  // of a strip
	stripElements        int
	out, in, weights     []T
	packed               []T
	slots                slots[T]
	packUnits, fillUnits int
	units                int
}

// The sizes of strips and units. mostStrip is the number of panels of a strip if the weights are
// too large for the second-level cache.
const (
	mostStrip    = 4
	cacheBytes   = 1 << 20
	stripWork    = 4 << 20 // multiply-adds of a unit of work, about 60 µs
	joinedPanels = 4       // images with fewer panels may be joined
)

// lay plans the strips. It returns the number of elements of the packed weights and of a slot.
func (c *correlate[T]) lay() (packed, slot int) {
	var v T
	size := int(unsafe.Sizeof(v))
	width := c.kernel.Columns()
	deepest, joined := 0, false
	for i := range c.correlations {
		k := &c.correlations[i]
		k.packed = packed
		packed += c.groups * c.outputs * c.depth(k)
		deepest, joined = max(deepest, c.depth(k)), joined || k.joined
	}
	c.panels = 1
	if c.outputs*deepest*size > cacheBytes {
		c.panels = mostStrip
	}
	c.packUnits, c.units = 0, 0
	for i := range c.correlations {
		k := &c.correlations[i]
		k.strips = tilesOf(k.places(), c.panels*width)
		if k.joined {
			k.strips = tilesOf(c.images*k.places(), c.panels*width)
		}
		k.perUnit = max(1, stripWork/max(1, c.panels*width*c.outputs*c.depth(k)))
		k.unit = c.units
		c.units += tilesOf(c.stripsOf(k), k.perUnit)
		c.packUnits += c.groups * tilesOf(c.outputs, c.kernel.Rows())
	}
	c.fillUnits = 0
	if c.fill {
		c.fillUnits = c.images * c.groups
	}
	slot = min(deepest, convDepth(c.kernel)) * width * c.panels
	c.stripElements = slot
	if joined {
		slot += c.outputs * width * c.panels
	}
	return packed, slot
}

// depth returns the inner dimension of the product. A bias is the weight of an additional 1.
func (c *correlate[T]) depth(k *correlation) int {
	if c.bias != nil {
		return k.inner() + 1
	}
	return k.inner()
}

func (c *correlate[T]) stripsOf(k *correlation) int {
	if k.joined {
		return k.strips * c.groups
	}
	return k.strips * c.groups * c.images
}

// work returns the number of multiply-adds.
func (c *correlate[T]) work() (n int) {
	for i := range c.correlations {
		k := &c.correlations[i]
		n += c.images * c.groups * k.places() * c.outputs * c.depth(k)
	}
	return n
}

// scratch returns the number of elements of scratch memory for as many goroutines as the work is
// worth.
func (c *correlate[T]) scratch() int {
	packed, slot := c.lay()
	return packed + min(convWorkers, c.kernel.Goroutines(c.work()))*slot
}

// run runs the correlations.
func (c *correlate[T]) run(scratch []T) {
	packed, slot := c.lay()
	if len(scratch) < packed+slot {
		scratch = make([]T, packed+slot)
	}
	c.packed = scratch[:packed]
	slots := c.slots.divide(scratch[packed:], slot)
	workers.Do(c, 2, min(slots, c.kernel.Goroutines(c.work()))-1)
}

// Units implements workers.Job.
func (c *correlate[T]) Units(phase int) int {
	if phase == 0 {
		return c.packUnits + c.fillUnits
	}
	return c.units
}

// Run implements workers.Job.
func (c *correlate[T]) Run(phase, unit int) {
	switch {
	case phase == 1:
		c.compute(unit)
	case unit < c.packUnits:
		c.pack(unit)
	default:
		c.fillImage(unit - c.packUnits)
	}
}
