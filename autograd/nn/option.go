package nn

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/autograd"
)

// LayerOption changes a layer that an [Initializer] makes from PyTorch's default; see [Stride],
// [Padding], [NoBias] and others. An option that a layer does not take is an error of the
// Initializer. If an option is given twice, the last one counts.
type LayerOption interface{ set(*layerOptions) }

// layerOption is an option by name.
type layerOption struct {
	name  string
	apply func(*layerOptions)
}

func (o layerOption) set(to *layerOptions) {
	to.given = append(to.given, o.name)
	o.apply(to)
}

// layerOptions are the options of a layer. given has the names of those that were set.
type layerOptions struct {
	given []string

	kernel, stride, padding, dilation, outputPadding []int
	shape                                            []int
	same                                             bool
	groups                                           int
	noBias, noAffine, affine, noStatistics           bool
	eps                                              float64
	momentum                                         *float64
	sequence                                         sequenceOptions
}

// options reads the options of a layer, which takes those named in takes. Any other one is an error
// that sticks.
func (in *Initializer) options(call string, options []LayerOption, takes ...string) layerOptions {
	var all layerOptions
	for _, o := range options {
		if o != nil {
			o.set(&all)
		}
	}
	for _, name := range all.given {
		if !slices.Contains(takes, name) {
			in.fail(call, fmt.Errorf("%w: the layer takes no option %s: %s", autograd.ErrInvalid, name, optionList(takes)))
		}
	}
	return all
}

func optionList(takes []string) string {
	if len(takes) == 0 {
		return "it takes none"
	}
	return "want " + strings.Join(takes, ", ")
}

// was reports whether an option was given.
func (o *layerOptions) was(name string) bool { return slices.Contains(o.given, name) }

// Kernel is the size of a window, instead of the number that the layer is made with: one number for
// all dimensions, or one for each.
func Kernel(n ...int) LayerOption {
	return layerOption{"Kernel", func(o *layerOptions) { o.kernel = slices.Clone(n) }}
}

// NormalizedShape is the shape of the last dimensions that a norm is over, instead of the number
// that the layer is made with.
func NormalizedShape(shape ...int) LayerOption {
	return layerOption{"NormalizedShape", func(o *layerOptions) { o.shape = slices.Clone(shape) }}
}

// Stride is the distance between neighbouring positions of a window: one number for all dimensions,
// or one for each. The default is 1.
func Stride(n ...int) LayerOption {
	return layerOption{"Stride", func(o *layerOptions) { o.stride = slices.Clone(n) }}
}

// Padding is the number of zeros on each side: one number for all dimensions, or one for each. The
// default is 0.
func Padding(n ...int) LayerOption {
	return layerOption{"Padding", func(o *layerOptions) { o.padding, o.same = slices.Clone(n), false }}
}

// SamePadding pads with zeros so that the result has the argument's size (padding="same"). The
// stride must be 1.
func SamePadding() LayerOption {
	return layerOption{"SamePadding", func(o *layerOptions) { o.padding, o.same = nil, true }}
}

// Dilation is the distance between neighbouring elements of a window: one number for all
// dimensions, or one for each. The default is 1.
func Dilation(n ...int) LayerOption {
	return layerOption{"Dilation", func(o *layerOptions) { o.dilation = slices.Clone(n) }}
}

// OutputPadding is the number that a transposed convolution adds to the size of its result at the
// end of each dimension.
func OutputPadding(n ...int) LayerOption {
	return layerOption{"OutputPadding", func(o *layerOptions) { o.outputPadding = slices.Clone(n) }}
}

// Groups splits the channels of a convolution into independent groups. As many groups as channels
// make a depthwise convolution.
func Groups(n int) LayerOption {
	return layerOption{"Groups", func(o *layerOptions) { o.groups = n }}
}

// NoBias makes a layer without a bias.
func NoBias() LayerOption {
	return layerOption{"NoBias", func(o *layerOptions) { o.noBias = true }}
}

// NoAffine makes a normalisation without weight and bias (affine=False, elementwise_affine=False).
func NoAffine() LayerOption {
	return layerOption{"NoAffine", func(o *layerOptions) { o.noAffine = true }}
}

// Affine makes an [InstanceNorm] with weights of 1 and biases of 0 (affine=True).
func Affine() LayerOption {
	return layerOption{"Affine", func(o *layerOptions) { o.affine = true }}
}

// NoRunningStatistics makes a batch norm that always uses the statistics of its batch
// (track_running_stats=False).
func NoRunningStatistics() LayerOption {
	return layerOption{"NoRunningStatistics", func(o *layerOptions) { o.noStatistics = true }}
}

// Eps is the number that a normalisation adds to the variance.
func Eps(eps float64) LayerOption {
	return layerOption{"Eps", func(o *layerOptions) { o.eps = eps }}
}

// Momentum is the share of a batch's statistics in the new running ones. The default is 0.1. With 0
// the running statistics stay unchanged; with NaN they are the mean of all batches (momentum=None).
func Momentum(share float64) LayerOption {
	return layerOption{"Momentum", func(o *layerOptions) { o.momentum = new(share) }}
}
