package tensor

import (
	"context"
	"fmt"
)

func (g *gpuKernels) loss(ctx context.Context, dst *Tensor, p *lossOperands) error {
	if dst.bytes == 0 {
		return nil
	}
	n := p.x.count()
	if p.each {
		l := g.newLaunch(p.kind.Name(), dst.dtype, n)
		l.write(dst)
		l.word(n)
		l.pairs(p)
		return g.runAs(l, kernelKey{"loss each", l.suffix})
	}
	grid := min(blocks(n, 1024), 2*enough)
	parts, err := g.takeParts(ctx, grid > 1)
	if err != nil {
		return fmt.Errorf("tensor: %s: %w", p.kind.Name(), err)
	}
	l := g.newLaunch(p.kind.Name(), dst.dtype, 0)
	l.Grid[0] = grid
	l.write(dst)
	l.word(n)
	l.meet(parts)
	l.pairs(p)
	return g.runAs(l, kernelKey{"loss", l.suffix})
}

func (g *gpuKernels) lossGrad(dst, dloss *Tensor, p *lossOperands, target bool) error {
	if dst.bytes == 0 {
		return nil
	}
	l := g.newLaunch(p.kind.Name(), dst.dtype, dst.count())
	l.write(dst)
	l.read(dloss)
	l.word(dst.count())
	l.flag(p.each)
	l.flag(target)
	l.pairs(p)
	return g.runAs(l, kernelKey{"loss grad", l.suffix})
}

// pairs is the kernels' struct of that name.
func (l *gpuLaunch) pairs(p *lossOperands) {
	l.read(p.x)
	l.read(p.t)
	l.readIf(p.weight)
	l.readIf(p.pos)
	l.word(int(p.kind))
	l.double(p.delta)
	l.double(p.divisor)
}
