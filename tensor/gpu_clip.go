package tensor

import (
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// maxClipped is the number of tensors that one launch takes: as many as a kernel's 4 KiB of arguments.
const maxClipped = 192

// The sorts of norms of clip.cu.
const (
	anyNorm = iota
	oneNorm
	twoNorm
	countNorm
	maxNorm
	minNorm
)

func sortOf(p kernel.Norm) int {
	switch {
	case p == 1:
		return oneNorm
	case p == 2:
		return twoNorm
	case p == 0:
		return countNorm
	case math.IsInf(float64(p), 1):
		return maxNorm
	case math.IsInf(float64(p), -1):
		return minNorm
	}
	return anyNorm
}

// clipLaunches queues a launch for each run of tensors of one dtype; begin adds the arguments before those of the tensors from the
// first-th on.
func (g *gpuKernels) clipLaunches(name string, ts []*Tensor, gridX int, writes bool, begin func(l *gpuLaunch, first, n int)) error {
	for first := 0; first < len(ts); {
		n := 1
		for first+n < len(ts) && n < maxClipped && ts[first+n].dtype == ts[first].dtype {
			n++
		}
		l := g.newLaunch(name, ts[first].dtype, 0)
		l.Grid = [3]uint32{uint32(gridX), uint32(n), 1}
		begin(l, first, n)
		for _, t := range ts[first : first+n] {
			if writes {
				l.update(t)
			} else {
				l.read(t)
			}
			l.word(t.count())
		}
		if err := g.run(l); err != nil {
			return err
		}
		first += n
	}
	return nil
}

func (g *gpuKernels) norm(total *Tensor, ts []*Tensor, p kernel.Norm, parts *Tensor) error {
	each := (parts.count() - 1) / len(ts)
	const size = 8 // of a part
	err := g.clipLaunches("norm parts", ts, each, false, func(l *gpuLaunch, first, n int) {
		l.writeRange(device.Range{Ptr: parts.ptr() + device.Ptr(first*each*size), Bytes: int64(n * each * size)})
		l.word(sortOf(p))
		l.double(float64(p))
	})
	if err != nil {
		return err
	}
	l := g.newLaunch("norm total", total.dtype, 0)
	l.write(total)
	l.update(parts)
	l.word(len(ts), each, sortOf(p))
	l.double(float64(p))
	return g.run(l)
}

func (g *gpuKernels) clip(ts []*Tensor, parts *Tensor, most float64) error {
	norm := parts.lastNumber()
	return g.clipLaunches("clip", ts, clipBlocks(ts, 256*4), true, func(l *gpuLaunch, _, _ int) {
		l.readRange(norm)
		l.double(most)
	})
}

func (g *gpuKernels) bound(ts []*Tensor, most float64) error {
	return g.clipLaunches("bound", ts, clipBlocks(ts, 256*4), true, func(l *gpuLaunch, _, _ int) { l.double(most) })
}

// clipBlocks are enough for the largest tensor, with so many elements for each block.
func clipBlocks(ts []*Tensor, each int) int {
	return int(blocks(largestOf(ts, func(t *Tensor) *Tensor { return t }), each))
}
