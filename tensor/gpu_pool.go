package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

// pool passes the plan as the kernels have it.
func (l *gpuLaunch) pool(p *kernel.Pool) {
	l.word(p.Planes)
	for _, pair := range [][2]int{p.In, p.Out, p.Window, p.Stride, p.Pad, p.Dilation} {
		l.word(pair[:]...)
	}
	l.flag(p.Adaptive)
	l.flag(p.ExcludePadding)
	l.flag(p.HasDivisor)
	l.word(p.Divisor)
}

func (g *gpuKernels) maxPool(p *kernel.Pool, y, indices, x *Tensor) error {
	l := g.newLaunch("max pool", y.dtype, y.count())
	l.write(y)
	l.write(indices)
	l.read(x)
	l.pool(p)
	return g.run(l)
}

func (g *gpuKernels) maxPoolGrad(p *kernel.Pool, dx, dy, indices *Tensor) error {
	l := g.newLaunch("max pool grad", dx.dtype, dx.count())
	l.write(dx)
	l.read(dy)
	l.read(indices)
	l.pool(p)
	return g.run(l)
}

func (g *gpuKernels) avgPool(p *kernel.Pool, y, x *Tensor) error {
	l := g.newLaunch("avg pool", y.dtype, y.count())
	l.write(y)
	l.read(x)
	l.pool(p)
	return g.run(l)
}

func (g *gpuKernels) avgPoolGrad(p *kernel.Pool, dx, dy *Tensor) error {
	l := g.newLaunch("avg pool grad", dx.dtype, dx.count())
	l.write(dx)
	l.read(dy)
	l.pool(p)
	return g.run(l)
}
