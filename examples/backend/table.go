package toy

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// table is the operations that the backend supports, with their functions.
var table = [backend.Ops]func(a *args){
	backend.Neg:       each(func(x, _ float64) float64 { return -x }),
	backend.Sqrt:      each(func(x, _ float64) float64 { return math.Sqrt(x) }),
	backend.Square:    each(func(x, _ float64) float64 { return x * x }),
	backend.Exp:       each(func(x, _ float64) float64 { return math.Exp(x) }),
	backend.Tanh:      each(func(x, _ float64) float64 { return math.Tanh(x) }),
	backend.Sigmoid:   each(func(x, _ float64) float64 { return math.Exp(min(x, 0)) / (1 + math.Exp(-math.Abs(x))) }),
	backend.ReLU:      each(func(x, _ float64) float64 { return relu(x) }),
	backend.AddScalar: each(add), backend.MulScalar: each(mul),

	backend.Add: zip(add), backend.Mul: zip(mul), backend.AddBias: zip(add),
	backend.Sub:         zip(func(a, b float64) float64 { return a - b }),
	backend.Div:         zip(func(a, b float64) float64 { return a / b }),
	backend.Broadcast:   zip(func(a, _ float64) float64 { return a }),
	backend.ReLUGrad:    zip(reluGrad),
	backend.SqrtGrad:    zip(func(dy, y float64) float64 { return dy / (2 * y) }),
	backend.SquareGrad:  zip(func(dy, x float64) float64 { return dy * (2 * x) }),
	backend.TanhGrad:    zip(func(dy, y float64) float64 { return dy * ((1 - y) * (1 + y)) }),
	backend.SigmoidGrad: zip(func(dy, y float64) float64 { return dy * (y * (1 - y)) }),
	backend.AddBiasReLU: zip(func(a, b float64) float64 { return relu(a + b) }),

	backend.Fill: each(func(_, c float64) float64 { return c }), backend.Convert: each(func(x, _ float64) float64 { return x }),
	backend.Sum: reduce, backend.MatMul: matMul, backend.SGDStep: sgd,
	backend.Softmax: softmax, backend.ArgMax: argMax, backend.CrossEntropy: crossEntropy, backend.CrossEntropyGrad: crossEntropyGrad,
}
