package hostop

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func indexed(t *functions) {
	by := t.pair(backend.Take, 2)
	by.of[backend.Int32].sizes(take[uint8, int32], take[uint16, int32], take[uint32, int32], take[uint64, int32])
	by.of[backend.Int64].sizes(take[uint8, int64], take[uint16, int64], take[uint32, int64], take[uint64, int64])
	by = t.pair(backend.Gather, 2)
	by.of[backend.Int32].sizes(gather[uint8, int32], gather[uint16, int32], gather[uint32, int32], gather[uint64, int32])
	by.of[backend.Int64].sizes(gather[uint8, int64], gather[uint16, int64], gather[uint32, int64], gather[uint64, int64])
	by = t.pair(backend.GatherGrad, 2)
	by.of[backend.Int32].floats(gatherGrad[float32, int32], gatherGrad[float64, int32])
	by.of[backend.Int64].floats(gatherGrad[float32, int64], gatherGrad[float64, int64])
	by = t.pair(backend.SortIndex, 2)
	by.of[backend.Int32][backend.Int64], by.of[backend.Int64][backend.Int64] = sortIndex[int32], sortIndex[int64]
	by = t.pair(backend.Scatter, 2)
	by.of[backend.Int32].sizes(scatter[uint8, int32], scatter[uint16, int32], scatter[uint32, int32], scatter[uint64, int32])
	by.of[backend.Int64].sizes(scatter[uint8, int64], scatter[uint16, int64], scatter[uint32, int64], scatter[uint64, int64])
	t.floats(sortRows[float32], sortRows[float64], backend.Sort)
	t.floats(takeGrad[float32], takeGrad[float64], backend.TakeGrad)
}

func fault(a *args, i int) *plan.Fault { return &of[plan.Fault](a, i)[0] }

func take[E word, I kernel.Index](a *args) {
	kernel.TakeRows(of[E](a, 0), of[E](a, 1), of[I](a, 2), *params[plan.Take](a), E(a.dtype.Missing()), fault(a, 3))
}

func gather[E word, I kernel.Index](a *args) {
	kernel.GatherElements(of[E](a, 0), of[E](a, 1), of[I](a, 2), a.Plan.(*plan.Gather), E(a.dtype.Missing()), fault(a, 3))
}

func gatherGrad[T kernel.Float, I kernel.Index](a *args) {
	kernel.GatherGrad(of[T](a, 0), of[T](a, 1), of[I](a, 2), a.Plan.(*plan.Gather), fault(a, 3))
}

func scatter[E word, I kernel.Index](a *args) {
	kernel.Scatter(of[E](a, 0), of[E](a, 1), E(a.dtype.Bits(a.C[0])), of[I](a, 2), a.Plan.(*plan.Gather), fault(a, 3))
}

func sortRows[T kernel.Float](a *args) {
	kernel.Sort(of[int32](a, 0), of[T](a, 1), *params[plan.Order](a))
}

func sortIndex[I kernel.Index](a *args) {
	s := params[plan.Sort](a)
	kernel.SortIndex(of[uint64](a, 0), of[I](a, 2), s.Rows, s.Skip)
}

func takeGrad[T kernel.Float](a *args) {
	t := params[plan.TakeGrad](a)
	kernel.TakeRowsGrad(of[T](a, 0), of[T](a, 1), of[uint64](a, 2), t.Take, t.Mean)
}
