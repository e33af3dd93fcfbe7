package nn

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Convolution is a layer of a convolution of one or two dimensions, or of a transposed one
// (torch.nn.Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d); see [Initializer.Conv2d].
type Convolution struct {
	// Weight is (outputs, inputs/groups, window...); if Transposed (inputs, outputs/groups,
	// window...).
	Weight     *autograd.Parameter
	Bias       *autograd.Parameter // (outputs); nil: none
	Config     tensor.ConvConfig
	Transposed bool
}

// The names that torch.nn has for a [Convolution].
type (
	Conv1d          = Convolution
	Conv2d          = Convolution
	ConvTranspose1d = Convolution
	ConvTranspose2d = Convolution
)

// Forward returns the convolution of x.
func (l *Convolution) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if l == nil {
		return noLayer(t, "Convolution")
	}
	return t.Layer(l.Weight, "weight", func() *autograd.Variable {
		w, bias := t.Param(l.Weight), t.Param(l.Bias)
		switch oneD := w.Rank() == 3; {
		case l.Transposed && oneD:
			return t.ConvTranspose1d(x, w, bias, l.Config)
		case l.Transposed:
			return t.ConvTranspose2d(x, w, bias, l.Config)
		case oneD:
			return t.Conv1d(x, w, bias, l.Config)
		}
		return t.Conv2d(x, w, bias, l.Config)
	})
}

// Parameters are "weight" and, if there is one, "bias".
func (l *Convolution) Parameters() autograd.Parameters {
	if l == nil {
		return nil
	}
	return weightAndBias(l.Weight, l.Bias)
}

// weightAndBias returns those of the two that are not nil, under PyTorch's names.
func weightAndBias(weight, bias *autograd.Parameter) (ps autograd.Parameters) {
	if weight != nil {
		ps = append(ps, autograd.Named{Name: "weight", Parameter: weight})
	}
	if bias != nil {
		ps = append(ps, autograd.Named{Name: "bias", Parameter: bias})
	}
	return ps
}

// Conv2d makes a layer of a convolution of pictures, from inputs to outputs channels, with a square
// window (torch.nn.Conv2d). Weights and biases are drawn like those of Linear. It takes [Kernel],
// [Stride], [Padding], [SamePadding], [Dilation], [Groups] and [NoBias].
func (in *Initializer) Conv2d(inputs, outputs, window int, options ...LayerOption) *Convolution {
	return in.convolution("Conv2d", 2, false, inputs, outputs, window, options)
}

// Conv1d is Conv2d for sequences (torch.nn.Conv1d).
func (in *Initializer) Conv1d(inputs, outputs, window int, options ...LayerOption) *Convolution {
	return in.convolution("Conv1d", 1, false, inputs, outputs, window, options)
}

// ConvTranspose2d makes a layer of a transposed convolution of pictures (torch.nn.ConvTranspose2d).
// It takes [Kernel], [Stride], [Padding], [OutputPadding], [Dilation], [Groups] and [NoBias].
func (in *Initializer) ConvTranspose2d(inputs, outputs, window int, options ...LayerOption) *Convolution {
	return in.convolution("ConvTranspose2d", 2, true, inputs, outputs, window, options)
}

// ConvTranspose1d is ConvTranspose2d for sequences (torch.nn.ConvTranspose1d).
func (in *Initializer) ConvTranspose1d(inputs, outputs, window int, options ...LayerOption) *Convolution {
	return in.convolution("ConvTranspose1d", 1, true, inputs, outputs, window, options)
}

func (in *Initializer) convolution(name string, dims int, transposed bool, inputs, outputs, window int, options []LayerOption) *Convolution {
	call := fmt.Sprintf("%s(%d, %d, %d)", name, inputs, outputs, window)
	takes := []string{"Kernel", "Stride", "Padding", "SamePadding", "Dilation", "Groups", "NoBias"}
	if transposed {
		takes[3] = "OutputPadding"
	}
	o := in.options(call, options, takes...)
	groups, kernel := o.groups, o.kernel
	if !o.was("Groups") {
		groups = 1
	}
	if len(kernel) == 0 {
		kernel = []int{window}
	}
	if len(kernel) == 1 {
		kernel = slices.Repeat(kernel, dims)
	}
	l := &Convolution{Transposed: transposed, Config: tensor.ConvConfig{Stride: o.stride, Padding: o.padding, Same: o.same, Dilation: o.dilation,
		OutputPadding: o.outputPadding, Groups: groups}}
	if groups < 1 || inputs < 1 || outputs < 1 || inputs%max(1, groups) != 0 || outputs%max(1, groups) != 0 || len(kernel) != dims {
		in.fail(call, fmt.Errorf("%w: groups %d, window %v: want channels that the groups divide, and a number for each of %d dimensions",
			autograd.ErrInvalid, groups, kernel, dims))
		l.Weight = in.noParameter()
		return l
	}
	shape := append([]int{outputs, inputs / groups}, kernel...)
	if transposed {
		shape[0], shape[1] = inputs, outputs/groups
	}
	fan := 1
	for _, n := range shape[1:] {
		if n < 1 {
			in.fail(call, fmt.Errorf("%w: window %v: want numbers of at least 1", autograd.ErrInvalid, kernel))
			l.Weight = in.noParameter()
			return l
		}
		fan *= n
	}
	l.Weight = in.fanIn(call, fan, shape...)
	if !o.noBias {
		l.Bias = in.fanIn(call, fan, outputs)
	}
	return l
}
