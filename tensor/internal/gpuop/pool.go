package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// pool has a thread for each element of the result.

func pool(_ context.Context, l *launch, k name) error {
	p := l.c.Plan.(*kernel.Pool)
	l.each(l.arg(0).Count())
	l.all()
	l.word(p.Planes)
	for _, pair := range [][2]int{p.In, p.Out, p.Window, p.Stride, p.Pad, p.Dilation} {
		l.word(pair[:]...)
	}
	l.flag(p.Adaptive, p.ExcludePadding, p.HasDivisor)
	l.word(p.Divisor)
	return l.run(k)
}
