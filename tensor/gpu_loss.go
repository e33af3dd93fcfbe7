package tensor

import (
	"context"
)

// manyPairs is how many losses one block adds up; of more, every block adds up some of them and another launch the rest.
const manyPairs = 1 << 13

func (g *gpuKernels) loss(ctx context.Context, dst *Tensor, p *lossOperands) error {
	if dst.bytes == 0 {
		return nil
	}
	n := p.x.count()
	l := g.newLaunch(p.kind.Name(), dst.dtype, n)
	if p.each || n <= manyPairs {
		name := "loss each"
		if !p.each {
			name = "loss"
			l.Grid[0], l.Block[0] = 1, 512
		}
		l.write(dst)
		l.word(n)
		l.pairs(p)
		return g.runAs(l, kernelKey{name, l.suffix})
	}
	sums := int(l.Grid[0])
	scratch, free, err := g.rt.scratch(ctx, p.kind.Name(), int64(sums)*8)
	if err != nil {
		return err
	}
	defer free()
	l.writeScratch(scratch, sums)
	l.word(n)
	l.pairs(p)
	if err := g.runAs(l, kernelKey{"loss part", l.suffix}); err != nil {
		return err
	}
	l = g.newLaunch(p.kind.Name(), dst.dtype, 0)
	l.Grid[0], l.Block[0] = 1, 512
	l.write(dst)
	l.readScratch(scratch, sums)
	l.word(sums)
	l.double(p.divisor)
	return g.runAs(l, kernelKey{"loss total", l.suffix})
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
