package tensor

import (
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (g *gpuKernels) reduce(s kernel.Statistic, dst *Tensor, kept Shape, x *Tensor, c float64) error {
	if dst.bytes == 0 {
		return nil
	}
	if x.bytes == 0 { // of no elements
		if s == kernel.Var {
			return g.fill(dst, math.NaN())
		}
		return g.fill(dst, math.Inf(-1))
	}
	name := s.Name()
	if s == kernel.Max {
		name = kernel.Amax.Name()
	}
	l := g.newLaunch(s.Name(), dst.dtype, 0)
	l.write(dst)
	l.read(x)
	if err := l.groups(x, dst.count(), kept, c); err != nil {
		return err
	}
	return g.runAs(l, kernelKey{name, l.suffix})
}

func (g *gpuKernels) reduceGrad(s kernel.Statistic, dst, dy, x, y *Tensor, kept Shape, c float64) error {
	if dst.bytes == 0 {
		return nil
	}
	l := g.newLaunch(s.Name()+" grad", dst.dtype, 0)
	l.write(dst)
	l.read(dy)
	l.read(x)
	l.readIf(y)
	if err := l.groups(x, dy.count(), kept, c); err != nil {
		return err
	}
	return g.run(l)
}

// groups are the arguments of a kernel with a block for each of so many outputs of a reduction of x, which has elements.
func (l *gpuLaunch) groups(x *Tensor, outputs int, kept Shape, c float64) error {
	r := x.rt.reduction(x.shape, kept)
	if len(r.Kept) > maxDims || len(r.Summed) > maxDims {
		return fmt.Errorf("tensor: %s: %w: %v to %v has more than %d different dimensions", l.Name, ErrUnsupported, x.shape, kept, maxDims)
	}
	count := x.count() / outputs
	l.Grid[0], l.Block[0] = blocks(outputs, 1), threads(count, 512)
	l.word(outputs, count)
	l.double(c)
	l.reduction(r)
	return nil
}

// reduction is the kernels' struct of that name.
func (l *gpuLaunch) reduction(r *kernel.Reduction) {
	for _, part := range [2][]kernel.Dim{r.Kept, r.Summed} {
		l.word(len(part))
		for _, d := range part {
			l.word(d.Size)
		}
		l.pad(maxDims - len(part))
		for _, d := range part {
			l.word(d.Stride)
		}
		l.pad(maxDims - len(part))
	}
}
