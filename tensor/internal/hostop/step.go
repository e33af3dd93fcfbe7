package hostop

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func steps(t *functions) {
	t.floats(step[float32], step[float64], backend.Step.All()...)
	t.floats(norm[float32], norm[float64], backend.Norm)
	t.floats(normTotal[float32], normTotal[float64], backend.NormOfNorms)
	t.floats(clip[float32], clip[float64], backend.Clip)
	t.floats(bound[float32], bound[float64], backend.Bound)
}

func step[T kernel.Float](a *args) {
	kernel.Step(&kernel.Rules[a.Op.Code()], params[plan.Numbers](a), a.own(), of[T](a, 0), of[T](a, 1), [3][]T{of[T](a, 2), of[T](a, 3), of[T](a, 4)})
}

func norm[T kernel.Float](a *args) {
	of[float64](a, 1)[0] = kernel.NormOf(kernel.Norm(a.C[0]), of[T](a, 0))
}

// normTotal sets the total, and the last of the numbers.
func normTotal[T kernel.Float](a *args) {
	all, each := of[float64](a, 1), params[plan.NormTotal](a).Each
	last := len(all) - 1
	norms := make([]float64, last/each)
	for i := range norms {
		norms[i] = all[i*each]
	}
	v := kernel.NormOfNorms(kernel.Norm(a.C[0]), norms)
	all[last], of[T](a, 0)[0] = v, T(v)
}

func clip[T kernel.Float](a *args) { kernel.Clip(of[T](a, 1), of[float64](a, 0)[0], a.C[0]) }

func bound[T kernel.Float](a *args) { kernel.Bound(of[T](a, 0), a.C[0]) }
