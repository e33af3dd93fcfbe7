package nn

import (
	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// MaxPool2d is a layer of the greatest elements of windows (torch.nn.MaxPool2d); see
// [tensor.PoolingConfig].
type MaxPool2d struct {
	Kernel, Stride, Padding, Dilation []int
	Ceil                              bool
}

// Forward returns the greatest element of every window of x.
func (l MaxPool2d) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable {
		return t.MaxPool2d(x, tensor.PoolingConfig{Kernel: l.Kernel, Stride: l.Stride, Padding: l.Padding, Dilation: l.Dilation, Ceil: l.Ceil})
	})
}

// Parameters is empty.
func (MaxPool2d) Parameters() autograd.Parameters { return nil }

// AvgPool2d is a layer of averages of windows (torch.nn.AvgPool2d); see [tensor.PoolingConfig].
type AvgPool2d struct {
	Kernel, Stride, Padding []int
	Ceil, ExcludePadding    bool
	Divisor                 int
}

// Forward returns the average of every window of x.
func (l AvgPool2d) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable {
		return t.AvgPool2d(x, tensor.PoolingConfig{Kernel: l.Kernel, Stride: l.Stride, Padding: l.Padding, Ceil: l.Ceil,
			ExcludePadding: l.ExcludePadding, Divisor: l.Divisor})
	})
}

// Parameters is empty.
func (AvgPool2d) Parameters() autograd.Parameters { return nil }

// AdaptiveAvgPool2d is a layer of averages over parts. Size is the number of parts: one number for
// both dimensions, or two; -1 leaves a dimension unchanged (torch.nn.AdaptiveAvgPool2d).
type AdaptiveAvgPool2d struct{ Size []int }

// Forward returns the averages of x.
func (l AdaptiveAvgPool2d) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable { return t.AdaptiveAvgPool2d(x, l.Size...) })
}

// Parameters is empty.
func (AdaptiveAvgPool2d) Parameters() autograd.Parameters { return nil }

// Dropout2d is Dropout of whole channels of x (n, channels, ...) (torch.nn.Dropout2d).
type Dropout2d struct {
	P float64 // the zero value drops nothing, and PyTorch's default is 0.5
	unchanged
}

// Forward returns x with channels dropped and the others over 1-P, or x itself if t does not train.
func (l Dropout2d) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if t.Runtime() != nil && !t.Training() {
		return x
	}
	return t.Layer(nil, "", func() *autograd.Variable { return t.Dropout2d(x, l.P) })
}

// Dropout is a layer that sets elements to 0 with probability P on a tape that trains, and
// otherwise does nothing (torch.nn.Dropout).
type Dropout struct {
	P float64 // the zero value drops nothing, and PyTorch's default is 0.5
}

// Forward returns x with elements dropped and the others over 1-P, or x itself if t does not train.
func (l Dropout) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if t.Runtime() != nil && !t.Training() {
		return x
	}
	return t.Layer(nil, "", func() *autograd.Variable { return t.Dropout(x, l.P) })
}

// Parameters is empty.
func (Dropout) Parameters() autograd.Parameters { return nil }
