package tensor

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (h *hostKernels) softmax(dst, x *Tensor) error {
	l := &launch{h: h, name: "softmax"}
	if dst.dtype == Float32 {
		return softmax[float32](l, dst, x)
	}
	return softmax[float64](l, dst, x)
}

func softmax[T kernel.Float](l *launch, dst, x *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	cols := x.shape[len(x.shape)-1]
	in, out := read[T](l, x), write[T](l, dst)
	return l.run(func() { kernel.Softmax(out, in, cols) })
}

func (h *hostKernels) softmaxGrad(dst, dy, y *Tensor) error {
	l := &launch{h: h, name: "softmax grad"}
	if dst.dtype == Float32 {
		return softmaxGrad[float32](l, dst, dy, y)
	}
	return softmaxGrad[float64](l, dst, dy, y)
}

func softmaxGrad[T kernel.Float](l *launch, dst, dy, y *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	cols := y.shape[len(y.shape)-1]
	g, v, out := read[T](l, dy), read[T](l, y), write[T](l, dst)
	return l.run(func() { kernel.SoftmaxGrad(out, g, v, cols) })
}

func (h *hostKernels) argMax(dst, x *Tensor) error {
	l := &launch{h: h, name: "argmax"}
	if x.dtype == Float32 {
		return argMax[float32](l, dst, x)
	}
	return argMax[float64](l, dst, x)
}

func argMax[T kernel.Float](l *launch, dst, x *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	cols := x.shape[len(x.shape)-1]
	in, out := read[T](l, x), write[int32](l, dst)
	return l.run(func() { kernel.ArgMax(out, in, cols) })
}

func (h *hostKernels) crossEntropy(loss, logits, labels *Tensor, fault *storage) error {
	l := &launch{h: h, name: "cross entropy"}
	if loss.dtype == Float32 {
		return crossEntropy[float32](l, loss, logits, labels, fault)
	}
	return crossEntropy[float64](l, loss, logits, labels, fault)
}

func crossEntropy[T kernel.Float](l *launch, loss, logits, labels *Tensor, fault *storage) error {
	in, classes, out := read[T](l, logits), read[int32](l, labels), write[T](l, loss)
	r := device.Range{Ptr: fault.block.Ptr(), Bytes: faultBytes}
	l.readRange(r)
	faults := elementsOf[kernel.Fault](l.writeRange(r))
	cols := logits.shape[1]
	return l.run(func() { kernel.CrossEntropy(out, in, classes, cols, &faults[0]) })
}

func (h *hostKernels) crossEntropyGrad(dst, logits, labels, dloss *Tensor) error {
	l := &launch{h: h, name: "cross entropy grad"}
	if dst.dtype == Float32 {
		return crossEntropyGrad[float32](l, dst, logits, labels, dloss)
	}
	return crossEntropyGrad[float64](l, dst, logits, labels, dloss)
}

func crossEntropyGrad[T kernel.Float](l *launch, dst, logits, labels, dloss *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	in, classes, scale, out := read[T](l, logits), read[int32](l, labels), read[T](l, dloss), write[T](l, dst)
	cols := logits.shape[1]
	return l.run(func() { kernel.CrossEntropyGrad(out, in, classes, scale, cols) })
}
