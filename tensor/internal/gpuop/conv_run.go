package gpuop

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

// The kernels of conv_run.cu are for the most frequent windows without dilation: 3 by 3 with a
// stride of 1 or 2, and 5 by 5 with a stride of 1. They read each number once for as many results
// as a thread's registers hold, whereas the tiled kernels find the position of every element of the
// large factor anew.

// The sizes of the work of a thread and of a block.
const (
	runDown, runAcross = 4, 8
	runThreads         = 128
)

// The gradient of the weights has jobs for blocks: 16 channels of x by the channels of y of an
// edition. A job iterates over tiles of 4 rows by the columns of the edition.
const (
	runChannels = 16
	runRows     = 4
)

// weightRuns is an edition of the kernel for the gradient of the weights.
type weightRuns struct {
	kernel         name
	channels, cols int // of y in a tile
}

var (
	weightRuns3 = weightRuns{named("conv_weight_grad_run_3"), 16, 32}
	weightWide  = weightRuns{named("conv_weight_grad_run_3_wide"), 32, 32}
	weightSmall = weightRuns{named("conv_weight_grad_run_3_small"), 32, 16}
)

// weightRunsOf returns the edition for so many channels of y, and for so wide a result.
func weightRunsOf(p *plan.Conv) weightRuns {
	switch {
	case p.K <= weightRuns3.channels:
		return weightRuns3
	case p.Out[1] <= weightSmall.cols:
		return weightSmall
	}
	return weightWide
}

// fewRuns is the number of threads below which a GPU is not full, so that tiles are faster.
const fewRuns = 1 << 10

// oneByOne reports whether stride and dilation are 1.
func oneByOne(p *plan.Conv) bool { return p.Stride == [2]int{1, 1} && p.Dilation == [2]int{1, 1} }

// runTile returns the edition by runs for a convolution, or the zero edition.
func runTile(p *plan.Conv) convTile {
	switch {
	case p.Window == [2]int{3, 3} && oneByOne(p):
		return run3
	case p.Window == [2]int{3, 3} && p.Stride == [2]int{2, 2} && p.Dilation == [2]int{1, 1}:
		return run3By2
	case p.Window == [2]int{5, 5} && oneByOne(p):
		return run5
	}
	return convTile{}
}

// runsOf returns the grid and the edition for a convolution by runs; ok is false if another edition
// is better.
func runsOf(p *plan.Conv, d backend.Dtype) (grid [3]uint32, t convTile, ok bool) {
	t = runTile(p)
	columns := p.N * ((p.Out[0] + runDown - 1) / runDown) * p.Out[1]
	grid, ok = runGrid(columns, p.K, p.Groups)
	return grid, t, ok && t.conv.has(d)
}

// gradRunsOf returns the same for the gradient of x, and the plan with x and y swapped.
func gradRunsOf(p *plan.Conv, d backend.Dtype) (back plan.Conv, grid [3]uint32, t convTile, ok bool) {
	back, t = *p, runTile(p)
	back.C, back.K, back.In, back.Out = p.K, p.C, p.Out, p.In
	columns := back.N
	if t == run3By2 { // the first pixel of a run is at an even position of the padded picture
		columns *= (p.In[0] + p.Pad[0] + 3) / 4 * ((p.In[1] + p.Pad[1] + 1) / 2)
	} else {
		columns *= (p.In[0] + runDown - 1) / runDown * p.In[1]
		for i := range 2 {
			back.Pad[i] = p.Window[i] - 1 - p.Pad[i]
		}
	}
	grid, ok = runGrid(columns, back.K, back.Groups)
	return back, grid, t, ok && t.inputGrad.has(d)
}

// runGrid returns the grid for that number of runs, each in all channels of the result; ok is false
// if these are too few or too many.
func runGrid(columns, channels, groups int) (grid [3]uint32, ok bool) {
	tiles := (channels + runAcross - 1) / runAcross * groups
	return [3]uint32{launch.GridSize(columns, runThreads), uint32(tiles), 1}, channels > fewChannels && tiles <= maxGridY && columns*tiles >= fewRuns
}

func (l *launcher) runConv(grid [3]uint32, k name, p *plan.Conv) error {
	l.Grid, l.Block[0] = grid, runThreads
	return l.operands(0, 1, 2, 3).conv(p).run(k)
}

// partTiles is the largest number of tiles of one sum. With more, it would lose precision that the
// parts of another edition keep.
const partTiles = 64

// weightGradRuns returns the kernel for a gradient of the weights by runs, with the numbers of jobs
// and of parts; ok is false if another edition is better.
func weightGradRuns(p *plan.Conv, d backend.Dtype) (k name, jobs, parts int, ok bool) {
	r := weightRunsOf(p)
	if !r.kernel.has(d) || !oneByOne(p) || p.Window != [2]int{3, 3} || p.C < fewChannels {
		return r.kernel, 0, 0, false
	}
	jobs = (p.C + runChannels - 1) / runChannels * ((p.K + r.channels - 1) / r.channels) * p.Groups
	tiles := p.N * ((p.Out[0] + runRows - 1) / runRows) * ((p.Out[1] + r.cols - 1) / r.cols)
	parts = max(1, min(enough/jobs, maxPartial/(p.Groups*p.K*p.Inner()), tiles))
	return r.kernel, jobs, parts, parts*partTiles >= tiles
}
