package hostop

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func losses(t *functions) {
	by := t.pair(backend.CrossEntropy, 2)
	by.of[backend.Int32] = cells{backend.Float32: crossEntropy[float32, float32, int32], backend.Float64: crossEntropy[float64, float64, int32], backend.BFloat16: crossEntropy[float32, bf16, int32]}
	by.of[backend.Int64] = cells{backend.Float32: crossEntropy[float32, float32, int64], backend.Float64: crossEntropy[float64, float64, int64], backend.BFloat16: crossEntropy[float32, bf16, int64]}
	by = t.pair(backend.CrossEntropyGrad, 2)
	by.of[backend.Int32] = cells{backend.Float32: crossEntropyGrad[float32, float32, int32], backend.Float64: crossEntropyGrad[float64, float64, int32], backend.BFloat16: crossEntropyGrad[float32, bf16, int32]}
	by.of[backend.Int64] = cells{backend.Float32: crossEntropyGrad[float32, float32, int64], backend.Float64: crossEntropyGrad[float64, float64, int64], backend.BFloat16: crossEntropyGrad[float32, bf16, int64]}
	by = t.pair(backend.NLLLoss, 2)
	by.of[backend.Int32].floats(nllLoss[float32, int32], nllLoss[float64, int32])
	by.of[backend.Int64].floats(nllLoss[float32, int64], nllLoss[float64, int64])
	by = t.pair(backend.NLLLossGrad, 1)
	by.of[backend.Int32].floats(nllLossGrad[float32, int32], nllLossGrad[float64, int32])
	by.of[backend.Int64].floats(nllLossGrad[float32, int64], nllLossGrad[float64, int64])
	t.floats(loss[float32], loss[float64], backend.Loss.All()...)
	t.floats(lossGrad[float32], lossGrad[float64], backend.LossGrad.All()...)
}

func crossEntropy[T kernel.Float, E kernel.Logit, L kernel.Index](a *args) {
	kernel.CrossEntropy(of[T](a, 0), of[E](a, 1), of[L](a, 2), of[T](a, 3), params[plan.Entropy](a), fault(a, 4))
}

func crossEntropyGrad[T kernel.Float, E kernel.Logit, L kernel.Index](a *args) {
	kernel.CrossEntropyGrad(of[E](a, 0), of[E](a, 1), of[L](a, 2), of[T](a, 3), of[T](a, 4), params[plan.Entropy](a))
}

func nllLoss[T kernel.Float, L kernel.Index](a *args) {
	kernel.NLLLoss(of[T](a, 0), of[T](a, 1), of[L](a, 2), of[T](a, 3), params[plan.Entropy](a), fault(a, 4))
}

func nllLossGrad[T kernel.Float, L kernel.Index](a *args) {
	kernel.NLLLossGrad(of[T](a, 0), of[L](a, 1), of[T](a, 2), of[T](a, 3), params[plan.Entropy](a))
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
