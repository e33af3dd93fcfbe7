package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// The kernels of conv_run.cu are for the windows that most convolutions have: 3 by 3 or 5 by 5, without stride and dilation. They read each
// number once for as many results as a thread's registers hold, where tiles find each element of the large factor by itself.

// What a thread of the kernels has, and a block.
const (
	runDown, runAcross = 4, 8
	runThreads         = 128
	runChannels        = 16 // of x and y in a block of the weights' gradient
	runRows, runCols   = 4, 32
)

// fewRuns don't fill a GPU: tiles are better.
const fewRuns = 1 << 10

// oneByOne is whether the window moves by one, and touches neighbours.
func oneByOne(p *kernel.Conv) bool { return p.Stride == [2]int{1, 1} && p.Dilation == [2]int{1, 1} }

// backwards is the convolution of dy that the gradient of x is, by the window turned around. The stride is 1.
func backwards(p *kernel.Conv) kernel.Conv {
	b := *p
	b.C, b.K, b.In, b.Out = p.K, p.C, p.Out, p.In
	for d := range 2 {
		b.Pad[d] = p.Window[d] - 1 - p.Pad[d]
	}
	return b
}

// runGrid is the grid of a convolution by runs, if they are the way to do it.
func runGrid(p *kernel.Conv, dt Dtype) (grid [3]uint32, ok bool) {
	if dt != Float32 || !oneByOne(p) || p.Window[0] != p.Window[1] || (p.Window[0] != 3 && p.Window[0] != 5) || p.K <= fewChannels {
		return grid, false
	}
	columns := p.N * ((p.Out[0] + runDown - 1) / runDown) * p.Out[1]
	tiles := (p.K + runAcross - 1) / runAcross * p.Groups
	return [3]uint32{blocks(columns, runThreads), uint32(tiles), 1}, tiles <= maxGridY && columns*tiles >= fewRuns
}

func (g *gpuKernels) convRun(op string, grid [3]uint32, p *kernel.Conv, out, a, w, bias *Tensor) error {
	l := g.newLaunch(op, out.dtype, 0)
	l.Grid, l.Block[0] = grid, runThreads
	t := run3
	if p.Window[0] == 5 {
		t = run5
	}
	if op == "conv" {
		return g.runConv(l, t.conv, p, out, a, w, bias)
	}
	return g.runConv(l, t.inputGrad, p, out, a, w, bias)
}

// partTiles is the most tiles that one sum takes: of more it loses what the parts of another edition keep.
const partTiles = 64

// weightGradRuns is the number of blocks' jobs and of parts of a gradient of the weights by runs, if they are the way to do it.
func weightGradRuns(p *kernel.Conv, dt Dtype) (jobs, parts int, ok bool) {
	if dt != Float32 || !oneByOne(p) || p.Window != [2]int{3, 3} || p.C < fewChannels {
		return 0, 0, false
	}
	jobs = (p.C + runChannels - 1) / runChannels * ((p.K + runChannels - 1) / runChannels) * p.Groups
	tiles := p.N * ((p.Out[0] + runRows - 1) / runRows) * ((p.Out[1] + runCols - 1) / runCols)
	parts = max(1, min(enough/jobs, maxPartial/(p.Groups*p.K*p.Inner()), tiles))
	return jobs, parts, parts*partTiles >= tiles
}

// convWeightGradRun is the gradient of the weights of a window of 3 by 3.
func (g *gpuKernels) convWeightGradRun(ctx context.Context, p *kernel.Conv, jobs, parts int, dw, dy, x *Tensor) error {
	const op = "conv weight grad"
	run := func(write func(l *gpuLaunch)) error {
		l := g.newLaunch(op, dw.dtype, 0)
		l.Grid[0] = blocks(jobs*parts, 1)
		write(l)
		l.read(dy)
		l.read(x)
		l.word(parts)
		l.plan(p)
		return g.runAs(l, kernelKey{op + " run 3", l.suffix})
	}
	if parts == 1 {
		return run(func(l *gpuLaunch) { l.write(dw) })
	}
	return g.inParts(ctx, op, dw, parts, func(r device.Range) error {
		return run(func(l *gpuLaunch) { l.writeRange(r) })
	})
}
