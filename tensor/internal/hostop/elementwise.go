package hostop

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func elementwise(t *functions) {
	t.floats(mapEach[float32], mapEach[float64], backend.Map.All()...)
	t.floats(mapGrad[float32], mapGrad[float64], backend.MapGrad.All()...)
	t.floats(zip[float32], zip[float64], backend.Zip.All()...)
	t.floats(bias[float32], bias[float64], backend.Bias.All()...)
	t.floats(extremeGrad[float32], extremeGrad[float64], backend.ExtremeGrad.All()...)
	t.floats(prelu[float32], prelu[float64], backend.PReLU)
	t.floats(preluGrad[float32], preluGrad[float64], backend.PReLUGrad)
	t.floats(preluWeightGrad[float32], preluWeightGrad[float64], backend.PReLUWeightGrad)
	for _, op := range backend.Compare.All() {
		t.of[op] = cells{backend.Float32: compare[float32], backend.Float64: compare[float64], backend.Int32: compare[int32],
			backend.Int64: compare[int64], backend.Uint8: compare[uint8]}
	}
	t.floats(pow[float32], pow[float64], backend.Pow)
	t.floats(powGrad[float32], powGrad[float64], backend.PowGrad.All()...)
}

func mapEach[T kernel.Float](a *args) {
	kernel.Map(&kernel.Functions[a.Op.Code()], of[T](a, 0), of[T](a, 1), a.C[0], a.C[1])
}

func mapGrad[T kernel.Float](a *args) {
	kernel.MapGrad(kernel.Slopes[a.Op.Code()], of[T](a, 0), of[T](a, 1), of[T](a, 2), a.C[0], a.C[1])
}

func zip[T kernel.Float](a *args) {
	kernel.Zip(kernel.Binary(a.Op.Code()), of[T](a, 0), of[T](a, 1), of[T](a, 2), a.Plan.(*plan.Broadcast))
}

func bias[T kernel.Float](a *args) {
	kernel.AddRows(of[T](a, 0), of[T](a, 1), of[T](a, 2), a.Op == backend.AddBiasReLU)
}

func extremeGrad[T kernel.Float](a *args) {
	kernel.ExtremeGrad(a.Op == backend.MaximumGrad, of[T](a, 0), of[T](a, 1), of[T](a, 2), of[T](a, 3), a.Plan.(*plan.Meeting))
}

func prelu[T kernel.Float](a *args) {
	kernel.PReLU(of[T](a, 0), of[T](a, 1), of[T](a, 2), *params[plan.Channels](a))
}

func preluGrad[T kernel.Float](a *args) {
	kernel.PReLUGrad(of[T](a, 0), of[T](a, 1), of[T](a, 2), of[T](a, 3), *params[plan.Channels](a))
}

func preluWeightGrad[T kernel.Float](a *args) {
	kernel.PReLUWeightGrad(of[T](a, 0), of[T](a, 1), of[T](a, 2), *params[plan.Channels](a))
}

func compare[T kernel.Number](a *args) {
	kernel.Compare(kernel.Comparison(a.Op.Code()), of[uint8](a, 0), of[T](a, 1), of[T](a, 2), a.Plan.(*plan.Broadcast))
}

func pow[T kernel.Float](a *args) {
	kernel.Pow(of[T](a, 0), of[T](a, 1), of[T](a, 2), a.Plan.(*plan.Broadcast))
}

func powGrad[T kernel.Float](a *args) {
	kernel.PowGrad(a.Op == backend.PowExponentGrad, of[T](a, 0), of[T](a, 1), of[T](a, 2), of[T](a, 3), a.Plan.(*plan.Meeting))
}
