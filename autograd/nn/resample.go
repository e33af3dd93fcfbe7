package nn

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Upsample is a layer that resizes pictures or sequences (torch.nn.Upsample); see
// [tensor.InterpolateConfig].
type Upsample struct {
	Size                   []int
	ScaleFactor            []float64
	Bilinear, AlignCorners bool
	unchanged
}

// Forward returns x in the layer's size.
func (l Upsample) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable {
		return t.Interpolate(x, tensor.InterpolateConfig{Size: l.Size, ScaleFactor: l.ScaleFactor, Bilinear: l.Bilinear, AlignCorners: l.AlignCorners})
	})
}

// ReflectionPad1d is a layer that mirrors sequences at both ends (torch.nn.ReflectionPad1d).
// Padding is one number, or two: left and right.
type ReflectionPad1d struct {
	Padding []int
	unchanged
}

// Forward returns [autograd.Tape.ReflectionPad] of x (..., length).
func (l ReflectionPad1d) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return padEdges(t, "ReflectionPad1d", x, 1, l.Padding, t.ReflectionPad)
}

// ReflectionPad2d is a layer that mirrors pictures at their edges (torch.nn.ReflectionPad2d).
// Padding is one number, or four: left, right, top and bottom.
type ReflectionPad2d struct {
	Padding []int
	unchanged
}

// Forward returns [autograd.Tape.ReflectionPad] of x (..., height, width).
func (l ReflectionPad2d) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return padEdges(t, "ReflectionPad2d", x, 2, l.Padding, t.ReflectionPad)
}

// ReplicationPad1d is [ReflectionPad1d] that repeats the outermost elements
// (torch.nn.ReplicationPad1d).
type ReplicationPad1d struct {
	Padding []int
	unchanged
}

// Forward returns [autograd.Tape.ReplicationPad] of x (..., length).
func (l ReplicationPad1d) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return padEdges(t, "ReplicationPad1d", x, 1, l.Padding, t.ReplicationPad)
}

// ReplicationPad2d is [ReflectionPad2d] that repeats the outermost elements
// (torch.nn.ReplicationPad2d).
type ReplicationPad2d struct {
	Padding []int
	unchanged
}

// Forward returns [autograd.Tape.ReplicationPad] of x (..., height, width).
func (l ReplicationPad2d) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return padEdges(t, "ReplicationPad2d", x, 2, l.Padding, t.ReplicationPad)
}

// padEdges pads the last dims dimensions of x. padding begins with the last dimension, as in
// PyTorch.
func padEdges(t *autograd.Tape, name string, x *autograd.Variable, dims int, padding []int,
	pad func(x *autograd.Variable, before, after []int) *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable {
		rank := x.Rank()
		switch {
		case !t.Begin(name, x):
			return t.Fail(nil)
		case len(padding) != 1 && len(padding) != 2*dims:
			return t.Fail(fmt.Errorf("nn: %s: %w: padding %v: want one number, or %d", name, autograd.ErrInvalid, padding, 2*dims))
		case rank < dims:
			return t.Fail(fmt.Errorf("nn: %s: %w %v: want %d dimensions at least", name, tensor.ErrShape, x.Shape(), dims))
		}
		if len(padding) == 1 {
			padding = slices.Repeat(padding, 2*dims)
		}
		before, after := make([]int, rank), make([]int, rank)
		for d := range dims {
			before[rank-1-d], after[rank-1-d] = padding[2*d], padding[2*d+1]
		}
		return pad(x, before, after)
	})
}
