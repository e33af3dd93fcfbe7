package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (h *hostKernels) cell(c *cellStep) error {
	l := &launch{h: h, name: c.kind.Name()}
	if c.newH.dtype == Float32 {
		return cell[float32](l, c)
	}
	return cell[float64](l, c)
}

func cell[T kernel.Float](l *launch, c *cellStep) error {
	k := &kernel.Cell[T]{Kind: c.kind, Size: c.size, Gates: update[T](l, c.gates), Hidden: readOr[T](l, c.hidden), Bias: readOr[T](l, c.bias),
		H: readOr[T](l, c.h), C: readOr[T](l, c.c), NewH: write[T](l, c.newH), NewC: updateOr[T](l, c.newC), New: updateOr[T](l, c.kept)}
	return l.run(func() { kernel.StepCell(k) })
}

func (h *hostKernels) cellGrad(c *cellGradStep) error {
	l := &launch{h: h, name: c.kind.GradName()}
	if c.dy.dtype == Float32 {
		return cellGrad[float32](l, c)
	}
	return cellGrad[float64](l, c)
}

func cellGrad[T kernel.Float](l *launch, c *cellGradStep) error {
	k := &kernel.CellGrad[T]{Kind: c.kind, Size: c.size, Gates: update[T](l, c.gates), DY: read[T](l, c.dy), DH: readOr[T](l, c.dh),
		Carry: updateOr[T](l, c.carry), First: c.first, H: readOr[T](l, c.h), C: readOr[T](l, c.c), NewH: read[T](l, c.newH),
		NewC: readOr[T](l, c.newC), New: readOr[T](l, c.kept)}
	if c.kind == kernel.GRU {
		k.DHidden = write[T](l, c.dhidden)
	}
	return l.run(func() { kernel.StepCellGrad(k) })
}
