package gpuop

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
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
func oneByOne(p *plan.Conv) bool { return p.Stride == [2]int{1, 1} && p.Dilation == [2]int{1, 1} }

// backwards is the convolution of dy that the gradient of x is, by the window turned around. The stride is 1.
func backwards(p *plan.Conv) plan.Conv {
	b := *p
	b.C, b.K, b.In, b.Out = p.K, p.C, p.Out, p.In
	for d := range 2 {
		b.Pad[d] = p.Window[d] - 1 - p.Pad[d]
	}
	return b
}

// runsOf is the grid and the edition of a convolution by runs, if they are the way to do it.
func runsOf(p *plan.Conv, d backend.Dtype) (grid [3]uint32, t convTile, ok bool) {
	switch p.Window {
	case [2]int{3, 3}:
		t = run3
	case [2]int{5, 5}:
		t = run5
	}
	if !t.conv.has(d) || !oneByOne(p) || p.K <= fewChannels {
		return grid, t, false
	}
	columns := p.N * ((p.Out[0] + runDown - 1) / runDown) * p.Out[1]
	tiles := (p.K + runAcross - 1) / runAcross * p.Groups
	return [3]uint32{launch.GridSize(columns, runThreads), uint32(tiles), 1}, t, tiles <= maxGridY && columns*tiles >= fewRuns
}

func (l *launcher) runConv(grid [3]uint32, k name, p *plan.Conv) error {
	l.Grid, l.Block[0] = grid, runThreads
	return l.operands(0, 1, 2, 3).conv(p).run(k)
}

// partTiles is the most tiles that one sum takes: of more it loses what the parts of another edition keep.
const partTiles = 64

// weightGradRuns is the number of blocks' jobs and of parts of a gradient of the weights by runs, if they are the way to do it.
func weightGradRuns(p *plan.Conv, d backend.Dtype) (jobs, parts int, ok bool) {
	if !run3.weightGrad.has(d) || !oneByOne(p) || p.Window != [2]int{3, 3} || p.C < fewChannels {
		return 0, 0, false
	}
	jobs = (p.C + runChannels - 1) / runChannels * ((p.K + runChannels - 1) / runChannels) * p.Groups
	tiles := p.N * ((p.Out[0] + runRows - 1) / runRows) * ((p.Out[1] + runCols - 1) / runCols)
	parts = max(1, min(enough/jobs, maxPartial/(p.Groups*p.K*p.Inner()), tiles))
	return jobs, parts, parts*partTiles >= tiles
}
