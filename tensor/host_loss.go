package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (h *hostKernels) loss(_ context.Context, dst *Tensor, p *lossOperands) error {
	l := &launch{h: h, name: p.kind.Name()}
	if dst.dtype == Float32 {
		return loss[float32](l, dst, p)
	}
	return loss[float64](l, dst, p)
}

func pairsOf[T kernel.Float](l *launch, p *lossOperands) kernel.Pairs[T] {
	return kernel.Pairs[T]{X: read[T](l, p.x), T: read[T](l, p.t), Weight: readOr[T](l, p.weight), Pos: readOr[T](l, p.pos)}
}

func loss[T kernel.Float](l *launch, dst *Tensor, p *lossOperands) error {
	if dst.bytes == 0 {
		return nil
	}
	in, out, kind, delta, divisor := pairsOf[T](l, p), write[T](l, dst), p.kind, p.delta, p.divisor
	if p.each {
		return l.run(func() { kernel.EachLoss(kind, out, in, delta) })
	}
	return l.run(func() { kernel.TotalLoss(kind, out, in, delta, divisor) })
}

func (h *hostKernels) lossGrad(dst, dloss *Tensor, p *lossOperands, target bool) error {
	l := &launch{h: h, name: p.kind.Name() + " grad"}
	if dst.dtype == Float32 {
		return lossGrad[float32](l, dst, dloss, p, target)
	}
	return lossGrad[float64](l, dst, dloss, p, target)
}

func lossGrad[T kernel.Float](l *launch, dst, dloss *Tensor, p *lossOperands, target bool) error {
	if dst.bytes == 0 {
		return nil
	}
	g, in, out, kind, delta, divisor := read[T](l, dloss), pairsOf[T](l, p), write[T](l, dst), p.kind, p.delta, p.divisor
	return l.run(func() { kernel.LossGrad(kind, out, g, in, delta, divisor, target) })
}
