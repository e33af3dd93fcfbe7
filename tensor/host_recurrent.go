package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

// readIf is read, or nothing for what is not there.
func readIf[T any](l *launch, t *Tensor) []T {
	if t == nil {
		return nil
	}
	return read[T](l, t)
}

func (h *hostKernels) cell(c *cellStep) error {
	l := &launch{h: h, name: c.kind.Name()}
	if c.newH.dtype == Float32 {
		return cell[float32](l, c)
	}
	return cell[float64](l, c)
}

func cell[T kernel.Float](l *launch, c *cellStep) error {
	k := &kernel.Cell[T]{Kind: c.kind, Size: c.size, Gates: update[T](l, c.gates), Hidden: readIf[T](l, c.hidden), Bias: readIf[T](l, c.bias),
		H: readIf[T](l, c.h), C: readIf[T](l, c.c), NewH: write[T](l, c.newH), NewC: updateIf[T](l, c.newC), New: updateIf[T](l, c.kept)}
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
	k := &kernel.CellGrad[T]{Kind: c.kind, Size: c.size, Gates: update[T](l, c.gates), DY: read[T](l, c.dy), DH: readIf[T](l, c.dh),
		Carry: updateIf[T](l, c.carry), First: c.first, H: readIf[T](l, c.h), C: readIf[T](l, c.c), NewH: read[T](l, c.newH),
		NewC: readIf[T](l, c.newC), New: readIf[T](l, c.kept)}
	if c.kind == kernel.GRU {
		k.DHidden = write[T](l, c.dhidden)
	}
	return l.run(func() { kernel.StepCellGrad(k) })
}
