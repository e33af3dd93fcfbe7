package hostop

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func reductions(t *functions) {
	t.floats(sum[float32], sum[float64], backend.Sum)
	t.floats(statistic[float32], statistic[float64], backend.Statistic.All()...)
	t.floats(statisticGrad[float32], statisticGrad[float64], backend.StatisticGrad.All()...)
	t.floats(softmax[float32], softmax[float64], backend.RowSoftmax.All()...)
	t.floats(softmaxGrad[float32], softmaxGrad[float64], backend.RowSoftmaxGrad.All()...)
	t.floats(argMax[float32], argMax[float64], backend.Extreme.All()...)
	t.floats(cumSum[float32], cumSum[float64], backend.CumSum)
}

func sum[T kernel.Float](a *args) {
	kernel.Sum(of[T](a, 0), of[T](a, 1), a.C[0], a.Plan.(*plan.Reduction))
}

func statistic[T kernel.Float](a *args) {
	kernel.Reduce(kernel.Statistic(a.Op.Code()), of[T](a, 0), of[T](a, 1), a.C[0], a.Plan.(*plan.Reduction))
}

func statisticGrad[T kernel.Float](a *args) {
	kernel.ReduceGrad(kernel.Statistic(a.Op.Code()), of[T](a, 0), of[T](a, 1), of[T](a, 2), of[T](a, 3), a.C[0], a.Plan.(*plan.Reduction))
}

func softmax[T kernel.Float](a *args) {
	kernel.Softmax(of[T](a, 0), of[T](a, 1), *params[plan.Rows](a), a.Op == backend.LogSoftmax)
}

func softmaxGrad[T kernel.Float](a *args) {
	kernel.SoftmaxGrad(of[T](a, 0), of[T](a, 1), of[T](a, 2), *params[plan.Rows](a), a.Op == backend.LogSoftmaxGrad)
}

func argMax[T kernel.Float](a *args) {
	sign := T(1)
	if a.Op == backend.ArgMin {
		sign = -1
	}
	kernel.ArgMax(of[int32](a, 0), of[T](a, 1), *params[plan.Rows](a), sign)
}

func cumSum[T kernel.Float](a *args) {
	kernel.CumSum(of[T](a, 0), of[T](a, 1), *params[plan.Rows](a), a.C[0] != 0)
}
