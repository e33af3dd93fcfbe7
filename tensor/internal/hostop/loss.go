package hostop

import (
	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/plan"
)

func losses(t *functions) {
	by := t.pair(backend.CrossEntropy, 2)
	by.of[backend.Int32] = cells{backend.Float32: crossEntropy[float32, int32], backend.Float64: crossEntropy[float64, int32], backend.BFloat16: crossEntropyBFloat16[int32]}
	by.of[backend.Int64] = cells{backend.Float32: crossEntropy[float32, int64], backend.Float64: crossEntropy[float64, int64], backend.BFloat16: crossEntropyBFloat16[int64]}
	by = t.pair(backend.CrossEntropyGrad, 2)
	by.of[backend.Int32] = cells{backend.Float32: crossEntropyGrad[float32, int32], backend.Float64: crossEntropyGrad[float64, int32], backend.BFloat16: crossEntropyGradBFloat16[int32]}
	by.of[backend.Int64] = cells{backend.Float32: crossEntropyGrad[float32, int64], backend.Float64: crossEntropyGrad[float64, int64], backend.BFloat16: crossEntropyGradBFloat16[int64]}
	t.floats(loss[float32], loss[float64], backend.Loss.All()...)
	t.floats(lossGrad[float32], lossGrad[float64], backend.LossGrad.All()...)
}

func crossEntropy[T kernel.Float, L kernel.Label](a *args) {
	kernel.CrossEntropy(of[T](a, 0), of[T](a, 1), of[L](a, 2), of[T](a, 3), *params[kernel.Entropy](a), fault(a, 4))
}

func crossEntropyGrad[T kernel.Float, L kernel.Label](a *args) {
	kernel.CrossEntropyGrad(of[T](a, 0), of[T](a, 1), of[L](a, 2), of[T](a, 3), of[T](a, 4), *params[kernel.Entropy](a))
}

// Logits of bfloat16 are too many for a copy in float32.

func crossEntropyBFloat16[L kernel.Label](a *args) {
	kernel.CrossEntropyBFloat16(of[float32](a, 0), of[bf16](a, 1), of[L](a, 2), of[float32](a, 3), *params[kernel.Entropy](a), fault(a, 4))
}

func crossEntropyGradBFloat16[L kernel.Label](a *args) {
	kernel.CrossEntropyGradBFloat16(of[bf16](a, 0), of[bf16](a, 1), of[L](a, 2), of[float32](a, 3), of[float32](a, 4), *params[kernel.Entropy](a))
}

func pairsOf[T kernel.Float](a *args, first int) kernel.Pairs[T] {
	return kernel.Pairs[T]{X: of[T](a, first), T: of[T](a, first+1), Weight: of[T](a, first+2), Pos: of[T](a, first+3)}
}

func loss[T kernel.Float](a *args) {
	kind := kernel.Loss(a.Op.Code())
	if params[plan.Loss](a).Each {
		kernel.EachLoss(kind, of[T](a, 0), pairsOf[T](a, 1), a.C[0])
	} else {
		kernel.TotalLoss(kind, of[T](a, 0), pairsOf[T](a, 1), a.C[0], a.C[1])
	}
}

func lossGrad[T kernel.Float](a *args) {
	kernel.LossGrad(kernel.Loss(a.Op.Code()), of[T](a, 0), of[T](a, 1), pairsOf[T](a, 2), a.C[0], a.C[1], params[plan.Loss](a).OfTarget)
}
