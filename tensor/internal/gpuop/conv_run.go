package gpuop

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

// The kernels of conv_run.cu are for the most frequent windows, 3 by 3 or 5 by 5 without stride and
// dilation. They read each number once for as many results as a thread's registers hold, whereas
// the tiled kernels find the position of every element of the large factor anew.

// The sizes of the work of a thread and of a block.
const (
	runDown, runAcross = 4, 8
	runThreads         = 128
	runChannels        = 16 // channels of x and y in a block of the weights' gradient
	runRows, runCols   = 4, 32
)

// fewRuns is the number of threads below which a GPU is not full, so that tiles are faster.
const fewRuns = 1 << 10

// oneByOne reports whether stride and dilation are 1.
func oneByOne(p *plan.Conv) bool { return p.Stride == [2]int{1, 1} && p.Dilation == [2]int{1, 1} }

// backwards returns the convolution of dy that computes the gradient of x, with a mirrored window.
// The stride must be 1.
func backwards(p *plan.Conv) plan.Conv {
	b := *p
	b.C, b.K, b.In, b.Out = p.K, p.C, p.Out, p.In
	for d := range 2 {
		b.Pad[d] = p.Window[d] - 1 - p.Pad[d]
	}
	return b
}

// runsOf returns the grid and the edition for a convolution by runs; ok is false if another edition
// is better.
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

// partTiles is the largest number of tiles of one sum. With more, it would lose precision that the
// parts of another edition keep.
const partTiles = 64

// weightGradRuns returns the number of jobs of blocks, and of parts, for a gradient of the weights
// by runs; ok is false if another edition is better.
func weightGradRuns(p *plan.Conv, d backend.Dtype) (jobs, parts int, ok bool) {
	if !run3.weightGrad.has(d) || !oneByOne(p) || p.Window != [2]int{3, 3} || p.C < fewChannels {
		return 0, 0, false
	}
	jobs = (p.C + runChannels - 1) / runChannels * ((p.K + runChannels - 1) / runChannels) * p.Groups
	tiles := p.N * ((p.Out[0] + runRows - 1) / runRows) * ((p.Out[1] + runCols - 1) / runCols)
	parts = max(1, min(enough/jobs, maxPartial/(p.Groups*p.K*p.Inner()), tiles))
	return jobs, parts, parts*partTiles >= tiles
}
