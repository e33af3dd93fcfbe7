package hostop

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func sequences(t *functions) {
	t.floats(attention[float32], attention[float64], backend.Attention)
	t.floats(attentionGrad[float32], attentionGrad[float64], backend.AttentionGrad)
	t.floats(cell[float32], cell[float64], backend.Cell.All()...)
	t.floats(cellGrad[float32], cellGrad[float64], backend.CellGrad.All()...)
}

// behind returns s from an element on, or an empty slice if s is shorter.
func behind[T any](s []T, from int) []T { return s[min(from, len(s)):] }

// attended returns the operands that attention and its gradient read: queries, keys, values and a
// mask.
func attended[T kernel.Float](a *args, first int) (*plan.Attention, *kernel.AttentionData[T]) {
	p := a.Plan.(*plan.Attention)
	d := &kernel.AttentionData[T]{Q: behind(of[T](a, first), p.Query.At), K: behind(of[T](a, first+1), p.Key.At), V: behind(of[T](a, first+2), p.Value.At)}
	switch p.Masking {
	case plan.FloatMask:
		d.FloatMask = of[T](a, first+3)
	case plan.BoolMask:
		d.BoolMask = of[uint8](a, first+3)
	}
	return p, d
}

func attention[T kernel.Float](a *args) {
	p, d := attended[T](a, 2)
	d.Out, d.Sums = of[T](a, 0), of[float64](a, 1)
	kernel.Attend(p, d)
}

func attentionGrad[T kernel.Float](a *args) {
	p, d := attended[T](a, 7)
	d.DQ, d.DK, d.DV = behind(of[T](a, 0), p.DQuery.At), behind(of[T](a, 1), p.DKey.At), behind(of[T](a, 2), p.DValue.At)
	d.DMask, d.DOut, d.Out, d.Sums = of[T](a, 3), of[T](a, 4), of[T](a, 5), of[float64](a, 6)
	kernel.AttendGrad(p, d)
}

func cell[T kernel.Float](a *args) {
	kernel.StepCell(&kernel.Cell[T]{Kind: kernel.Recurrent(a.Op.Code()), Size: params[plan.Cell](a).Size, Gates: of[T](a, 0), Hidden: of[T](a, 1), Bias: of[T](a, 2),
		H: of[T](a, 3), C: of[T](a, 4), NewH: of[T](a, 5), NewC: of[T](a, 6), New: of[T](a, 7)})
}

func cellGrad[T kernel.Float](a *args) {
	p := params[plan.Cell](a)
	kernel.StepCellGrad(&kernel.CellGrad[T]{Kind: kernel.Recurrent(a.Op.Code()), Size: p.Size, First: p.First, Gates: of[T](a, 0), DHidden: of[T](a, 1), DY: of[T](a, 2),
		DH: of[T](a, 3), Carry: of[T](a, 4), H: of[T](a, 5), C: of[T](a, 6), NewH: of[T](a, 7), NewC: of[T](a, 8), New: of[T](a, 9)})
}
