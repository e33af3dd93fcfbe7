package tensor

import (
	"fmt"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// index is a list of indices, and whether they are int64.
func (l *gpuLaunch) index(t *Tensor) {
	l.read(t)
	l.flag(t.dtype == Int64)
}

// bad is what stands for an element that is not there, and the word for faults.
func (l *gpuLaunch) bad(dtype Dtype, fault *storage) {
	l.Args = append(l.Args, badBits(dtype))
	l.fault(fault)
}

func (g *gpuKernels) take(dst, x, index *Tensor, t kernel.Take, fault *storage) error {
	l := g.newLaunch("take", dst.dtype, dst.count())
	l.write(dst)
	l.read(x)
	l.index(index)
	l.bad(dst.dtype, fault)
	l.word(t.Outer, t.Rows, t.Count, t.Inner)
	return g.runAs(l, kernelKey{"take", fillSuffix[dst.dtype.Size()]})
}

// sortedRun is how many places one block sorts; it is the same in index.cu.
const sortedRun = 2048

// sortIndex sorts runs in shared memory, and merges pairs of runs from one buffer to the other until there is one.
func (g *gpuKernels) sortIndex(order, spare, index *Tensor, rows, skip int) error {
	n := order.count()
	to, other := order, spare
	for width := sortedRun; width < n; width *= 2 {
		to, other = other, to
	}
	l := g.newLaunch("sort index", index.dtype, 0)
	l.Grid[0], l.Block[0] = blocks(n, sortedRun), 32
	for l.Block[0] < sortedRun/2 && 2*int(l.Block[0]) < n {
		l.Block[0] *= 2
	}
	l.write(to)
	l.index(index)
	l.word(n, rows, skip)
	if err := g.runAs(l, kernelKey{"sort_index", ""}); err != nil {
		return err
	}
	for width := sortedRun; width < n; width *= 2 {
		l := g.newLaunch("merge index", index.dtype, n)
		l.write(other)
		l.read(to)
		l.word(n, width)
		if err := g.runAs(l, kernelKey{"merge_index", ""}); err != nil {
			return err
		}
		to, other = other, to
	}
	return nil
}

func (g *gpuKernels) takeGrad(dst, dy, order *Tensor, t kernel.Take, mean bool) error {
	l := g.newLaunch("take grad", dst.dtype, 0)
	l.Grid[0], l.Grid[1] = blocks(t.Count, 1), uint32(min((t.Outer*t.Inner+31)/32, maxGridY))
	l.Block = [3]uint32{32, 8, 1}
	l.write(dst)
	l.read(dy)
	l.read(order)
	l.word(t.Outer, t.Rows, t.Count, t.Inner)
	l.flag(mean)
	return g.run(l)
}

// What a launch scans is at most so many places, which is the same in index.cu, and so many for all rows: sorting them costs a launch, the memory of the sorted index
// and, as rows without a place are zeroed apart, another launch. The limits were chosen by that reckoning, and not measured.
const (
	scannedPlaces = 2048
	scannedInAll  = 1 << 18
	scanBlocks    = 4096 // enough to fill a GPU: those of more columns look at the places once for several of them
)

func (g *gpuKernels) scanGrad(dst, dy, index *Tensor, t kernel.Take, skip int, mean, onto bool) (bool, error) {
	if t.Count == 0 || t.Count > scannedPlaces || t.Rows > scannedInAll/t.Count {
		return false, nil
	}
	l := g.newLaunch("scan grad", dst.dtype, 0)
	l.Grid[0], l.Grid[1] = blocks(t.Rows, 1), uint32(min((t.Outer*t.Inner+31)/32, max(1, scanBlocks/t.Rows)))
	l.Block = [3]uint32{32, 8, 1}
	l.onto(dst, onto)
	l.read(dy)
	l.index(index)
	l.word(t.Outer, t.Rows, t.Count, t.Inner, skip)
	l.flag(mean)
	l.flag(onto)
	return true, g.run(l)
}

// columns are the last arguments of a kernel that gathers.
func (l *gpuLaunch) columns(g *kernel.Gather) error {
	c := g.Columns
	if len(c.Dims) > maxDims {
		return fmt.Errorf("tensor: %s: %w: the index has %d different dimensions; kernels take %d", l.Name, ErrUnsupported, len(c.Dims), maxDims)
	}
	l.word(c.Count(), g.Length, g.IndexStride, g.Rows, g.XStride, len(c.Dims))
	l.lists(c.Dims, c.Dst, c.Src)
	return nil
}

func (g *gpuKernels) gather(dst, x, index *Tensor, by *kernel.Gather, fault *storage) error {
	l := g.newLaunch("gather", dst.dtype, dst.count())
	l.write(dst)
	l.read(x)
	l.index(index)
	l.bad(dst.dtype, fault)
	if err := l.columns(by); err != nil {
		return err
	}
	return g.runAs(l, kernelKey{"gather", fillSuffix[dst.dtype.Size()]})
}

func (g *gpuKernels) gatherGrad(dst, dy, index *Tensor, by *kernel.Gather) error {
	l := g.newLaunch("gather grad", dst.dtype, by.Columns.Count())
	l.update(dst)
	l.read(dy)
	l.index(index)
	if err := l.columns(by); err != nil {
		return err
	}
	return g.run(l)
}
