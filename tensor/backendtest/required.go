package backendtest

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Required are the operations that every backend must support in float32 and float64: those with
// which a program builds, trains and evaluates models of dense layers. Fusions are not among them,
// because package tensor does without.
var Required = slices.Concat(
	backend.Map.All(), backend.MapGrad.All(), backend.Zip.All(), []backend.Op{backend.AddBias, backend.AddBiasReLU}, // elementwise
	[]backend.Op{backend.Fill, backend.Convert, backend.Place, backend.Transpose}, // what moves elements
	[]backend.Op{backend.Sum, backend.Softmax, backend.LogSoftmax, backend.SoftmaxGrad, backend.LogSoftmaxGrad, backend.ArgMax},
	[]backend.Op{backend.CrossEntropy, backend.CrossEntropyGrad, backend.MSELoss, backend.MSELossGrad},
	[]backend.Op{backend.MatMul, backend.SGDStep, backend.AdamStep},
)
