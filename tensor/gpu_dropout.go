package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (g *gpuKernels) dropout(dst, x *Tensor, r kernel.Random, live *Tensor, below uint64, scale float64) error {
	l := g.newLaunch("dropout", dst.dtype, (dst.count()+3)/4)
	l.write(dst)
	l.read(x)
	l.word(dst.count())
	l.Args = append(l.Args, r.Seed, r.Stream, below)
	l.number(scale)
	l.readIf(live)
	return g.run(l)
}
