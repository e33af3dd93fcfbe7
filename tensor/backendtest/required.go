package backendtest

import "github.com/cistern-ml/cistern/tensor/backend"

// Required are the operations that a backend must support in float32 and float64. With them a
// program builds, trains and evaluates models of dense layers. Fusions are not required, because
// package tensor can replace them.
var Required = []backend.Op{
	backend.Neg, backend.Exp, backend.Sqrt, backend.Square, backend.Tanh, backend.Sigmoid, backend.ReLU, backend.AddScalar, backend.MulScalar,
	backend.Add, backend.Sub, backend.Mul, backend.Div, backend.Broadcast,
	backend.ReLUGrad, backend.TanhGrad, backend.SigmoidGrad, backend.SqrtGrad, backend.SquareGrad, backend.AddBias, backend.AddBiasReLU,
	backend.Fill, backend.Convert, backend.Sum, backend.Softmax, backend.ArgMax,
	backend.CrossEntropy, backend.CrossEntropyGrad, backend.MatMul, backend.SGDStep,
}
