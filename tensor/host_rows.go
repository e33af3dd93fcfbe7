package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func softmaxName(log bool) string {
	if log {
		return "log softmax"
	}
	return "softmax"
}

func (h *hostKernels) softmax(dst, x *Tensor, r kernel.Rows, log bool) error {
	l := &launch{h: h, name: softmaxName(log)}
	if dst.dtype == Float32 {
		return softmax[float32](l, dst, x, r, log)
	}
	return softmax[float64](l, dst, x, r, log)
}

func softmax[T kernel.Float](l *launch, dst, x *Tensor, r kernel.Rows, log bool) error {
	if dst.bytes == 0 {
		return nil
	}
	in, out := read[T](l, x), write[T](l, dst)
	return l.run(func() { kernel.Softmax(out, in, r, log) })
}

func (h *hostKernels) softmaxGrad(dst, dy, y *Tensor, r kernel.Rows, log bool) error {
	l := &launch{h: h, name: softmaxName(log) + " grad"}
	if dst.dtype == Float32 {
		return softmaxGrad[float32](l, dst, dy, y, r, log)
	}
	return softmaxGrad[float64](l, dst, dy, y, r, log)
}

func softmaxGrad[T kernel.Float](l *launch, dst, dy, y *Tensor, r kernel.Rows, log bool) error {
	if dst.bytes == 0 {
		return nil
	}
	g, v, out := read[T](l, dy), read[T](l, y), write[T](l, dst)
	return l.run(func() { kernel.SoftmaxGrad(out, g, v, r, log) })
}

func (h *hostKernels) argMax(dst, x *Tensor, r kernel.Rows) error {
	l := &launch{h: h, name: "argmax"}
	if x.dtype == Float32 {
		return argMax[float32](l, dst, x, r)
	}
	return argMax[float64](l, dst, x, r)
}

func argMax[T kernel.Float](l *launch, dst, x *Tensor, r kernel.Rows) error {
	if dst.bytes == 0 {
		return nil
	}
	in, out := read[T](l, x), write[int32](l, dst)
	return l.run(func() { kernel.ArgMax(out, in, r) })
}

func (h *hostKernels) crossEntropy(_ context.Context, e kernel.Entropy, loss, logits, labels, weights *Tensor, fault *storage) error {
	l := &launch{h: h, name: "cross entropy"}
	switch {
	case logits.dtype == BFloat16 && labels.dtype == Int32:
		return crossEntropyBFloat16[int32](l, e, loss, logits, labels, weights, fault)
	case logits.dtype == BFloat16:
		return crossEntropyBFloat16[int64](l, e, loss, logits, labels, weights, fault)
	case loss.dtype == Float32 && labels.dtype == Int32:
		return crossEntropy[float32, int32](l, e, loss, logits, labels, weights, fault)
	case loss.dtype == Float32:
		return crossEntropy[float32, int64](l, e, loss, logits, labels, weights, fault)
	case labels.dtype == Int32:
		return crossEntropy[float64, int32](l, e, loss, logits, labels, weights, fault)
	default:
		return crossEntropy[float64, int64](l, e, loss, logits, labels, weights, fault)
	}
}

func crossEntropy[T kernel.Float, L kernel.Label](l *launch, e kernel.Entropy, loss, logits, labels, weights *Tensor, fault *storage) error {
	in, classes, of, out, word := read[T](l, logits), read[L](l, labels), readOr[T](l, weights), write[T](l, loss), l.faultOf(fault)
	return l.run(func() { kernel.CrossEntropy(out, in, classes, of, e, word) })
}

func (h *hostKernels) crossEntropyGrad(_ context.Context, e kernel.Entropy, dst, logits, labels, weights, dloss *Tensor) error {
	l := &launch{h: h, name: "cross entropy grad"}
	switch {
	case dst.dtype == BFloat16 && labels.dtype == Int32:
		return crossEntropyGradBFloat16[int32](l, e, dst, logits, labels, weights, dloss)
	case dst.dtype == BFloat16:
		return crossEntropyGradBFloat16[int64](l, e, dst, logits, labels, weights, dloss)
	case dst.dtype == Float32 && labels.dtype == Int32:
		return crossEntropyGrad[float32, int32](l, e, dst, logits, labels, weights, dloss)
	case dst.dtype == Float32:
		return crossEntropyGrad[float32, int64](l, e, dst, logits, labels, weights, dloss)
	case labels.dtype == Int32:
		return crossEntropyGrad[float64, int32](l, e, dst, logits, labels, weights, dloss)
	default:
		return crossEntropyGrad[float64, int64](l, e, dst, logits, labels, weights, dloss)
	}
}

func crossEntropyGrad[T kernel.Float, L kernel.Label](l *launch, e kernel.Entropy, dst, logits, labels, weights, dloss *Tensor) error {
	in, classes, of, scale, out := read[T](l, logits), read[L](l, labels), readOr[T](l, weights), read[T](l, dloss), write[T](l, dst)
	return l.run(func() { kernel.CrossEntropyGrad(out, in, classes, of, scale, e) })
}
