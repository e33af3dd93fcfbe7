package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (g *gpuKernels) cell(c *cellStep) error {
	n := c.newH.count()
	l := g.newLaunch(c.kind.Name(), c.newH.dtype, n)
	switch c.kind {
	case kernel.LSTM:
		l.update(c.gates)
		l.readIf(c.hidden)
		l.readIf(c.bias)
		l.readIf(c.c)
		l.write(c.newH)
		l.write(c.newC)
		l.word(n, c.size)
	case kernel.GRU:
		l.update(c.gates)
		l.readIf(c.hidden)
		l.readIf(c.bias)
		l.readIf(c.h)
		l.write(c.newH)
		l.writeIf(c.kept)
		l.word(n, c.size)
	default:
		l.read(c.gates)
		l.readIf(c.hidden)
		l.readIf(c.bias)
		l.write(c.newH)
		l.word(n, c.size, int(c.kind))
	}
	return g.run(l)
}

func (g *gpuKernels) cellGrad(c *cellGradStep) error {
	n := c.dy.count()
	l := g.newLaunch(c.kind.GradName(), c.dy.dtype, n)
	switch c.kind {
	case kernel.LSTM:
		l.update(c.gates)
		l.read(c.dy)
		l.readIf(c.dh)
		l.update(c.carry)
		l.readIf(c.c)
		l.read(c.newC)
		l.word(n, c.size)
		l.flag(c.first)
	case kernel.GRU:
		l.update(c.gates)
		l.write(c.dhidden)
		l.read(c.dy)
		l.readIf(c.dh)
		l.update(c.carry)
		l.readIf(c.h)
		l.read(c.kept)
		l.word(n, c.size)
		l.flag(c.first)
	default:
		l.write(c.gates)
		l.read(c.dy)
		l.readIf(c.dh)
		l.read(c.newH)
		l.word(n, int(c.kind))
	}
	return g.run(l)
}
