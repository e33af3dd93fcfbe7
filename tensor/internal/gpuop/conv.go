package gpuop

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// convTile is an edition of the kernels of a convolution, with the size of a block's tile of the
// result.
type convTile struct {
	conv, inputGrad, weightGrad name
	rows, cols                  int
}

var (
	tile64    = newConvTile("64", 64, 64)
	tile32    = newConvTile("32", 32, 128) // for few channels
	tileSmall = convTile{named("conv_small"), named("conv_input_grad_small"), 0, 32, 32}
	// direct has no tiles: a thread or a block computes one element.
	direct = newConvTile("direct", 1, 1)

	// A thread computes a run of results.
	run3    = convTile{named("conv_run_3"), named("conv_input_grad_run_3"), 0, 1, 1}
	run3By2 = convTile{named("conv_run_3_by_2"), named("conv_input_grad_run_3_by_2"), 0, 1, 1}
	run5    = convTile{named("conv_run_5"), named("conv_input_grad_run_5"), 0, 1, 1}
)

func newConvTile(edition string, rows, cols int) convTile {
	return convTile{named("conv_" + edition), named("conv_input_grad_" + edition), named("conv_weight_grad_" + edition), rows, cols}
}

func convolutions(t *entries) {
	t[backend.Conv] = entry{kernel: direct.conv, run: conv}
	t[backend.ConvInputGrad] = entry{kernel: direct.inputGrad, run: convInputGrad}
	t[backend.ConvWeightGrad] = entry{kernel: direct.weightGrad, run: convWeightGrad}
	t.run("max_pool", pool, backend.MaxPool)
	t.run("max_pool_grad", pool, backend.MaxPoolGrad)
	t.run("avg_pool", pool, backend.AvgPool)
	t.run("avg_pool_grad", pool, backend.AvgPoolGrad)
}

// fewTiles is the number of tiles below which a GPU is not full, so that smaller tiles are faster.
const fewTiles = 256

// convTileOf chooses the edition for that number of products with (rows) by (cols) results.
func convTileOf(d backend.Dtype, rows, cols, products int) convTile {
	if !tileSmall.conv.has(d) {
		return tile64
	}
	t := tile64
	if rows <= 32 {
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

// fewChannels is the number of channels of a group up to which most of a tile would be empty.
const fewChannels = 4

// convTiles sets the grid of an edition.
func (l *launcher) convTiles(t convTile, rows, cols, products int) *launcher {
	if t == direct {
		return l.Each(rows * cols * products)
	}
	return l.Blocks(t.count(rows, cols, products), 256, 1)
}

// conv adds the kernels' struct of that name.
func (l *launcher) conv(p *plan.Conv) *launcher {
	return l.Word(p.N, p.Groups, p.C, p.K).axes(p.In, p.Out, p.Window, p.Stride, p.Pad, p.Dilation)
}

// axes adds two words for each pair: one for the rows, one for the columns.
func (l *launcher) axes(pairs ...[2]int) *launcher {
	for _, pair := range pairs {
		l.Word(pair[:]...)
	}
	return l
}

// pool sets one thread per element of the result.
func pool(_ context.Context, l *launcher, k name) error {
	p := l.c.Plan.(*plan.Pool)
	l.Each(l.arg(0).Count()).all().Word(p.Planes).axes(p.In, p.Out, p.Window, p.Stride, p.Pad, p.Dilation)
	return l.Flag(p.Adaptive, p.ExcludePadding, p.HasDivisor).Word(p.Divisor).run(k)
}

// fits returns an error if a number that the kernels count with 32 bits is too large: the pixels of
// a channel, or the terms of a result's sum.
func fits(p *plan.Conv) error {
	const most = 1 << 30
	window := float64(p.Window[0]) * float64(p.Window[1])
	size := max(float64(p.In[0])*float64(p.In[1]), float64(p.Out[0])*float64(p.Out[1]), float64(p.C)*window, float64(p.K)*window)
	for d := range 2 {
		size = max(size, float64(p.In[d])+float64(p.Pad[d])+float64(p.Stride[d]), float64(p.Out[d])*float64(p.Stride[d])+float64(p.Window[d])*float64(p.Dilation[d]))
	}
	if size >= most {
		return fmt.Errorf("%w: the kernel takes pictures, and windows of all channels, of less than 2^30 elements", backend.ErrUnsupported)
	}
	return nil
}

func conv(_ context.Context, l *launcher, _ name) error {
	p := l.c.Plan.(*plan.Conv)
	if err := fits(p); err != nil {
		return err
	}
	if grid, t, ok := runsOf(p, l.Dtype); ok {
		return l.runConv(grid, t.conv, p)
	}
	cols := p.N * p.Places()
	t := convTileOf(l.Dtype, p.K, cols, p.Groups)
	if p.K <= fewChannels {
		t = direct
	}
	return l.convTiles(t, p.K, cols, p.Groups).operands(0, 1, 2, 3).conv(p).run(t.conv)
}

func convInputGrad(_ context.Context, l *launcher, _ name) error {
	p := l.c.Plan.(*plan.Conv)
	if err := fits(p); err != nil {
		return err
	}
	if back, grid, t, ok := gradRunsOf(p, l.Dtype); ok {
		return l.runConv(grid, t.inputGrad, &back)
	}
	// Each remainder of the strides is a separate product for the pixels that have it.
	cols := p.N * ((p.In[0] + p.Stride[0] - 1) / p.Stride[0]) * ((p.In[1] + p.Stride[1] - 1) / p.Stride[1])
	products := p.Groups * p.Stride[0] * p.Stride[1]
	t := convTileOf(l.Dtype, p.C, cols, products)
	if p.C <= fewChannels || p.Stride[0]*p.Stride[1] > 64 {
		t, cols, products = direct, p.N*p.Pixels(), p.Groups
	}
	return l.convTiles(t, p.C, cols, products).operands(0, 1, 2, 3).conv(p).run(t.inputGrad)
}
