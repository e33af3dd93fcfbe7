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
