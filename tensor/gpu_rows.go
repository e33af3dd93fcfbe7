package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

// rowLaunch begins the launch of a kernel with a block for each of n rows, of one warp at least.
func (g *gpuKernels) rowLaunch(name string, dt Dtype, n int, r kernel.Rows) *gpuLaunch {
	l := g.newLaunch(name, dt, 0)
	l.Grid[0], l.Block[0] = blocks(n, 1), threads(r.Cols, 512)
	return l
}

// rows is the kernels' struct of that name.
func (l *gpuLaunch) rows(n int, r kernel.Rows) { l.word(n, r.Cols, r.Inner) }

func (g *gpuKernels) softmax(dst, x *Tensor, r kernel.Rows, log bool) error {
	if dst.bytes == 0 {
		return nil
	}
	n := x.count() / r.Cols
	l := g.rowLaunch(softmaxName(log), x.dtype, n, r)
	l.write(dst)
	l.read(x)
	l.rows(n, r)
	return g.run(l)
}

func (g *gpuKernels) softmaxGrad(dst, dy, y *Tensor, r kernel.Rows, log bool) error {
	if dst.bytes == 0 {
		return nil
	}
	n := y.count() / r.Cols
	l := g.rowLaunch(softmaxName(log)+" grad", y.dtype, n, r)
	l.write(dst)
	l.read(dy)
	l.read(y)
	l.rows(n, r)
	return g.run(l)
}

func (g *gpuKernels) argMax(dst, x *Tensor, r kernel.Rows) error {
	if dst.bytes == 0 {
		return nil
	}
	l := g.rowLaunch("argmax", x.dtype, dst.count(), r)
	l.Block[0] = 32
	l.write(dst)
	l.read(x)
	l.rows(dst.count(), r)
	return g.run(l)
}
