package hostop

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func norms(t *functions) {
	t.floats(normalize[float32], normalize[float64], backend.Normalize)
	t.floats(normalizeGrad[float32], normalizeGrad[float64], backend.NormalizeGrad)
	t.floats(normalizeWeightGrad[float32], normalizeWeightGrad[float64], backend.NormalizeWeightGrad)
	t.floats(batchNorm[float32], batchNorm[float64], backend.BatchNorm, backend.BatchNormTraining)
	t.floats(batchNormGrad[float32], batchNormGrad[float64], backend.BatchNormGrad)
}

func normalize[T kernel.Float](a *args) {
	kernel.Normalize(a.Plan.(*plan.RowNorm), of[T](a, 0), of[float64](a, 1), of[T](a, 2), of[T](a, 3), of[T](a, 4))
}

func normalizeGrad[T kernel.Float](a *args) {
	p, dw, db, dy, x, stats := a.Plan.(*plan.RowNorm), of[T](a, 1), of[T](a, 2), of[T](a, 3), of[T](a, 4), of[float64](a, 6)
	kernel.NormalizeGrad(p, of[T](a, 0), dy, x, of[T](a, 5), stats)
	if dw != nil || db != nil {
		kernel.NormalizeWeightGrad(p, dw, db, dy, x, stats)
	}
}

func normalizeWeightGrad[T kernel.Float](a *args) {
	kernel.NormalizeWeightGrad(a.Plan.(*plan.RowNorm), of[T](a, 0), of[T](a, 1), of[T](a, 2), of[T](a, 3), of[float64](a, 4))
}

func batchNorm[T kernel.Float](a *args) {
	p := a.Plan.(*plan.BatchNorm)
	running := kernel.Running[T]{Mean: of[T](a, 5), Var: of[T](a, 6)}
	if p.Training {
		running.Batches = of[int64](a, 7)
	}
	kernel.NormalizeBatch(p, of[T](a, 0), of[float64](a, 1), of[T](a, 2), of[T](a, 3), of[T](a, 4), running)
}

func batchNormGrad[T kernel.Float](a *args) {
	kernel.NormalizeBatchGrad(a.Plan.(*plan.BatchNorm), of[T](a, 0), of[T](a, 1), of[T](a, 2), of[T](a, 3), of[T](a, 4), of[T](a, 5), of[float64](a, 6))
}
