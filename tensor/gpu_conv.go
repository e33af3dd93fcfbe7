package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// convTile is one of the editions of the kernels of a convolution, by the tile of the result that a block does.
type convTile struct {
	conv, inputGrad, weightGrad string // the kernels
	rows, cols                  int
}

var (
	tile64    = newConvTile("64", 64, 64)
	tile32    = newConvTile("32", 32, 128) // for few channels
	tileSmall = newConvTile("small", 32, 32)
	direct    = newConvTile("direct", 1, 1) // no tiles: a thread or a block does an element

	// A thread does a run of results.
	run3 = newConvTile("run 3", 1, 1)
	run5 = newConvTile("run 5", 1, 1)
)

func newConvTile(edition string, rows, cols int) convTile {
	return convTile{"conv " + edition, "conv input grad " + edition, "conv weight grad " + edition, rows, cols}
}

// fewTiles don't fill a GPU: smaller ones are better.
const fewTiles = 256

// convTileOf chooses the edition for so many products of (rows) by (cols) results.
func convTileOf(dt Dtype, rows, cols, products int) convTile {
	t := tile64
	switch {
	case dt == Float64:
		return t
	case rows <= 32:
		t = tile32
	}
	if t.count(rows, cols, products) < fewTiles {
		return tileSmall
	}
	return t
}

func (t convTile) count(rows, cols, products int) int {
	return ((rows + t.rows - 1) / t.rows) * ((cols + t.cols - 1) / t.cols) * products
}

// fewChannels in a group make tiles empty for the most part.
const fewChannels = 4

// convLaunch begins the launch of a convolution's kernel.
func (g *gpuKernels) convLaunch(name string, like *Tensor, t convTile, rows, cols, products int) *gpuLaunch {
	l := g.newLaunch(name, like.dtype, rows*cols*products)
	if t != direct {
		l.Grid[0] = blocks(t.count(rows, cols, products), 1)
	}
	return l
}

func (l *gpuLaunch) plan(p *kernel.Conv) {
	l.word(p.N, p.Groups, p.C, p.K)
	for _, pair := range [][2]int{p.In, p.Out, p.Window, p.Stride, p.Pad, p.Dilation} {
		l.word(pair[:]...)
	}
}

// fits refuses what the kernels count with 32 bits: the pixels of a channel, and the numbers that a result is a sum of.
func (g *gpuKernels) fits(op string, p *kernel.Conv) error {
	const most = 1 << 30
	window := float64(p.Window[0]) * float64(p.Window[1])
	size := max(float64(p.In[0])*float64(p.In[1]), float64(p.Out[0])*float64(p.Out[1]), float64(p.C)*window, float64(p.K)*window)
	for d := range 2 {
		size = max(size, float64(p.In[d])+float64(p.Pad[d])+float64(p.Stride[d]), float64(p.Out[d])*float64(p.Stride[d])+float64(p.Window[d])*float64(p.Dilation[d]))
	}
	if size >= most {
		return fmt.Errorf("tensor: %s: %w: the kernel takes pictures, and windows of all channels, of less than 2^30 elements", op, ErrUnsupported)
	}
	return nil
}

func (g *gpuKernels) conv(_ context.Context, p *kernel.Conv, y, x, w, bias *Tensor) error {
	if err := g.fits("conv", p); err != nil {
		return err
	}
	if grid, ok := runGrid(p, y.dtype); ok {
		return g.convRun("conv", grid, p, y, x, w, bias)
	}
	cols := p.N * p.Places()
	t := convTileOf(y.dtype, p.K, cols, p.Groups)
	if p.K <= fewChannels {
		t = direct
	}
	l := g.convLaunch("conv", y, t, p.K, cols, p.Groups)
	return g.runConv(l, t.conv, p, y, x, w, bias)
}

func (g *gpuKernels) convInputGrad(_ context.Context, p *kernel.Conv, dx, dy, w, bias *Tensor) error {
	if err := g.fits("conv input grad", p); err != nil {
		return err
	}
	if back := backwards(p); p.Stride == [2]int{1, 1} {
		if grid, ok := runGrid(&back, dx.dtype); ok {
			return g.convRun("conv input grad", grid, &back, dx, dy, w, bias)
		}
	}
	// The pixels at each remainder of the strides are products of their own.
	cols := p.N * ((p.In[0] + p.Stride[0] - 1) / p.Stride[0]) * ((p.In[1] + p.Stride[1] - 1) / p.Stride[1])
	products := p.Groups * p.Stride[0] * p.Stride[1]
	t := convTileOf(dx.dtype, p.C, cols, products)
	if p.C <= fewChannels || p.Stride[0]*p.Stride[1] > 64 {
		t, cols, products = direct, p.N*p.Pixels(), p.Groups
	}
	l := g.convLaunch("conv input grad", dx, t, p.C, cols, products)
	return g.runConv(l, t.inputGrad, p, dx, dy, w, bias)
}

func (g *gpuKernels) runConv(l *gpuLaunch, name string, p *kernel.Conv, out, a, w, bias *Tensor) error {
	l.write(out)
	l.read(a)
	l.read(w)
	l.readIf(bias)
	l.plan(p)
	return g.runAs(l, kernelKey{name, l.suffix})
}

// A gradient of the weights is a sum over all places of all images: few results, each of many products. Parts of the
// sum are tiles of their own, to scratch memory of at most maxPartial elements, and are added in the order of the parts.
const (
	maxPartial  = 1 << 20
	leastPlaces = 256
)

// weightParts is the number of parts, and the places in each but the last.
func weightParts(p *kernel.Conv, tiles, weights int) (parts, chunk int) {
	places := p.N * p.Places()
	parts = max(1, min(fewTiles/max(1, tiles), maxPartial/weights, places/leastPlaces))
	chunk = ((places+parts-1)/parts + 15) / 16 * 16
	return (places + chunk - 1) / chunk, chunk
}

func (g *gpuKernels) convWeightGrad(ctx context.Context, p *kernel.Conv, dw, dy, x *Tensor) error {
	const op = "conv weight grad"
	if err := g.fits(op, p); err != nil {
		return err
	}
	if p.K <= fewChannels && p.K*p.Inner() <= leastPlaces {
		l := g.newLaunch(op, dw.dtype, 0)
		l.Grid[0] = blocks(dw.count(), 1)
		l.write(dw)
		l.read(dy)
		l.read(x)
		l.plan(p)
		return g.runAs(l, kernelKey{direct.weightGrad, l.suffix})
	}
	if jobs, parts, ok := weightGradRuns(p, dw.dtype); ok {
		return g.convWeightGradRun(ctx, p, jobs, parts, dw, dy, x)
	}
	t := tile64
	switch {
	case dw.dtype == Float64:
	case p.Inner() <= tileSmall.cols:
		t = tileSmall
	case p.K <= tile32.rows:
		t = tile32
	}
	parts, chunk := weightParts(p, t.count(p.K, p.Inner(), p.Groups), dw.count())
	l := g.convLaunch(op, dw, t, p.K, p.Inner(), p.Groups*parts)
	if parts == 1 {
		l.write(dw)
		return g.weightGrad(l, t, p, dy, x, 1, chunk)
	}
	return g.inParts(ctx, op, dw, parts, func(r device.Range) error {
		l.writeRange(r)
		return g.weightGrad(l, t, p, dy, x, parts, chunk)
	})
}

// inParts adds up what f leaves: so many parts of dw.
func (g *gpuKernels) inParts(ctx context.Context, op string, dw *Tensor, parts int, f func(device.Range) error) error {
	n := dw.count()
	return g.rt.withScratch(ctx, op, dw, parts*n, func(b memcache.Block) error {
		r := b.Range(0, int64(parts)*dw.bytes)
		if err := f(r); err != nil {
			return err
		}
		sum := g.newLaunch("conv parts", dw.dtype, 0)
		sum.Grid[0], sum.Block = blocks(n, 32), [3]uint32{32, 32, 1}
		sum.write(dw)
		sum.readRange(r)
		sum.word(n, parts)
		return g.run(sum)
	})
}

func (g *gpuKernels) weightGrad(l *gpuLaunch, t convTile, p *kernel.Conv, dy, x *Tensor, parts, chunk int) error {
	l.read(dy)
	l.read(x)
	l.word(parts, chunk)
	l.plan(p)
	return g.runAs(l, kernelKey{t.weightGrad, l.suffix})
}
