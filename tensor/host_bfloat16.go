package tensor

import (
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// doesBFloat16 are the operations whose operands are too large for a copy in float32.
func (h *hostKernels) doesBFloat16(operation string) bool {
	return operation == "crossEntropy" || operation == "crossEntropyGrad"
}

// attendsBFloat16 is for devices with attention of bfloat16.
func (h *hostKernels) attendsBFloat16(*kernel.Attention) bool { return false }

func crossEntropyBFloat16[L kernel.Label](l *launch, e kernel.Entropy, loss, logits, labels, weights *Tensor, fault *storage) error {
	in, classes, of, out, word := read[BF16](l, logits), read[L](l, labels), readOr[float32](l, weights), write[float32](l, loss), l.faultOf(fault)
	return l.run(func() { kernel.CrossEntropyBFloat16(out, in, classes, of, e, word) })
}

func crossEntropyGradBFloat16[L kernel.Label](l *launch, e kernel.Entropy, dst, logits, labels, weights, dloss *Tensor) error {
	in, classes, of, scale, out := read[BF16](l, logits), read[L](l, labels), readOr[float32](l, weights), read[float32](l, dloss), write[BF16](l, dst)
	return l.run(func() { kernel.CrossEntropyGradBFloat16(out, in, classes, of, scale, e) })
}
