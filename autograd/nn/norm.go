package nn

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/autograd/internal/names"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// BatchNorm normalises the channels of x (n, channels, ...), of any number of dimensions
// (torch.nn.BatchNorm1d, BatchNorm2d, BatchNorm3d). On a tape that trains it uses the statistics of
// the batch, and moves the running statistics towards them. On other tapes, such as those of
// NoGrad, it uses the running statistics, unless it has none. They move in the forward pass, even
// if the step fails afterwards.
type BatchNorm struct {
	Weight, Bias *autograd.Parameter // (channels); nil: none
	Mean, Var    *tensor.Tensor      // running statistics, (channels); nil: none
	Batches      *tensor.Tensor      // batches so far, a scalar of int64; nil: not counted
	// Momentum is the batch's share of the new running statistics; nil: 0.1; NaN: they are the mean
	// of all batches.
	Momentum *float64
	Eps      float64 // added to the variance; 0: 1e-5

	named string // the weight's name when nameBuffers last ran
}

// Forward returns x with normalised channels.
func (l *BatchNorm) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if l == nil {
		return noLayer(t, "BatchNorm")
	}
	return t.Layer(l.Weight, "weight", func() *autograd.Variable {
		l.nameBuffers(t)
		c := tensor.BatchNormConfig{Training: t.Training() || l.Mean == nil, Mean: l.Mean, Var: l.Var, Batches: l.Batches, Eps: l.Eps}
		if l.Momentum != nil {
			c.Momentum = *l.Momentum
		}
		if l.Momentum != nil && *l.Momentum == 0 && c.Training {
			c.Mean, c.Var = nil, nil // they stay unchanged; in package tensor 0 means 0.1
		}
		return t.BatchNorm(x, t.Param(l.Weight), t.Param(l.Bias), c)
	})
}

// nameBuffers sets the module of the running statistics after that of the parameters.
func (l *BatchNorm) nameBuffers(t *autograd.Tape) {
	if l.Weight == nil || l.Weight.Name() == l.named {
		return
	}
	l.named = l.Weight.Name()
	layer := names.Layer(l.Weight.Value().Label().Module)
	for _, b := range l.Buffers() {
		if err := nameBuffer(b.Tensor, l.named, layer); err != nil {
			t.Fail(fmt.Errorf("nn: BatchNorm: %w", err))
		}
	}
}

// Parameters are "weight" and "bias", if there are any.
func (l *BatchNorm) Parameters() autograd.Parameters {
	if l == nil {
		return nil
	}
	return weightAndBias(l.Weight, l.Bias)
}

// Buffers are "running_mean", "running_var" and "num_batches_tracked", if there are any.
func (l *BatchNorm) Buffers() (all []NamedTensor) {
	if l == nil {
		return nil
	}
	for _, b := range []NamedTensor{{"running_mean", l.Mean}, {"running_var", l.Var}, {batchesName, l.Batches}} {
		if b.Tensor != nil {
			all = append(all, b)
		}
	}
	return all
}

const batchesName = "num_batches_tracked"

// BatchNorm makes a batch norm with weights of 1 and biases of 0. It takes [Eps], [Momentum],
// [NoAffine] and [NoRunningStatistics].
func (in *Initializer) BatchNorm(channels int, options ...LayerOption) *BatchNorm {
	call := fmt.Sprintf("BatchNorm(%d)", channels)
	o := in.options(call, options, "Eps", "Momentum", "NoAffine", "NoRunningStatistics")
	if momentum := check.Or(o.momentum, 0); math.IsInf(momentum, 0) {
		in.fail(call, fmt.Errorf("%w: momentum %v: want a number, or NaN", autograd.ErrInvalid, momentum))
	}
	l := &BatchNorm{Eps: in.eps(call, o), Momentum: o.momentum}
	if !o.noAffine {
		l.Weight, l.Bias = in.constant(call, 1, channels), in.constant(call, 0, channels)
	}
	if !o.noStatistics {
		l.Mean, l.Var = in.buffer(call, 0, in.dtype, channels), in.buffer(call, 1, in.dtype, channels)
		l.Batches = in.buffer(call, 0, tensor.Int64)
	}
	return l
}

// eps returns the eps of a normalisation's options.
func (in *Initializer) eps(call string, o layerOptions) float64 {
	if o.was("Eps") && !(o.eps > 0 && o.eps <= math.MaxFloat64) {
		in.fail(call, fmt.Errorf("%w: eps %v: want a number above 0", autograd.ErrInvalid, o.eps))
	}
	return o.eps
}

// buffer makes a tensor of a layer that is not a parameter.
func (in *Initializer) buffer(call string, v float64, dtype tensor.Dtype, shape ...int) *tensor.Tensor {
	return in.tensor(call, memcache.CategoryParameter, func(ctx context.Context) (*tensor.Tensor, error) { return in.rt.Full(ctx, v, dtype, shape...) })
}

// LayerNorm normalises x over its last dimensions (torch.nn.LayerNorm).
type LayerNorm struct {
	Weight, Bias *autograd.Parameter // of Shape; nil: none
	Shape        []int               // the last dimensions of x
	Eps          float64             // added to the variance; 0: 1e-5
}

// Forward returns x, normalised.
func (l *LayerNorm) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if l == nil {
		return noLayer(t, "LayerNorm")
	}
	return t.Layer(l.Weight, "weight", func() *autograd.Variable {
		return t.LayerNorm(x, t.Param(l.Weight), t.Param(l.Bias), l.Eps, l.Shape...)
	})
}

// Parameters are "weight" and "bias", if there are any.
func (l *LayerNorm) Parameters() autograd.Parameters {
	if l == nil {
		return nil
	}
	return weightAndBias(l.Weight, l.Bias)
}

// LayerNorm makes a layer norm over a last dimension of size elements, with weights of 1 and biases
// of 0. It takes [NormalizedShape] for several dimensions, [Eps], [NoAffine] and [NoBias].
func (in *Initializer) LayerNorm(size int, options ...LayerOption) *LayerNorm {
	call := fmt.Sprintf("LayerNorm(%d)", size)
	o := in.options(call, options, "NormalizedShape", "Eps", "NoAffine", "NoBias")
	l := &LayerNorm{Shape: o.normalized(size), Eps: in.eps(call, o)}
	if !o.noAffine {
		l.Weight = in.constant(call, 1, l.Shape...)
	}
	if !o.noAffine && !o.noBias {
		l.Bias = in.constant(call, 0, l.Shape...)
	}
	return l
}

// normalized returns the shape of the dimensions that a norm is over.
func (o *layerOptions) normalized(size int) []int {
	if o.was("NormalizedShape") {
		return slices.Clone(o.shape)
	}
	return []int{size}
}

// GroupNorm normalises groups of the channels of x (n, channels, ...) (torch.nn.GroupNorm).
type GroupNorm struct {
	Weight, Bias *autograd.Parameter // (channels); nil: none
	Groups       int
	Eps          float64 // added to the variance; 0: 1e-5
}

// Forward returns x with normalised groups.
func (l *GroupNorm) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if l == nil {
		return noLayer(t, "GroupNorm")
	}
	return t.Layer(l.Weight, "weight", func() *autograd.Variable { return t.GroupNorm(x, t.Param(l.Weight), t.Param(l.Bias), l.Groups, l.Eps) })
}

// Parameters are "weight" and "bias", if there are any.
func (l *GroupNorm) Parameters() autograd.Parameters {
	if l == nil {
		return nil
	}
	return weightAndBias(l.Weight, l.Bias)
}

// GroupNorm makes a group norm, with weights of 1 and biases of 0. groups must divide channels. It
// takes [Eps] and [NoAffine].
func (in *Initializer) GroupNorm(groups, channels int, options ...LayerOption) *GroupNorm {
	call := fmt.Sprintf("GroupNorm(%d, %d)", groups, channels)
	o := in.options(call, options, "Eps", "NoAffine")
	if groups < 1 || channels%max(1, groups) != 0 {
		in.fail(call, fmt.Errorf("%w: want groups that divide the channels", autograd.ErrInvalid))
	}
	l := &GroupNorm{Groups: groups, Eps: in.eps(call, o)}
	if !o.noAffine {
		l.Weight, l.Bias = in.constant(call, 1, channels), in.constant(call, 0, channels)
	}
	return l
}

// RMSNorm divides x by the root mean square of its last dimensions (torch.nn.RMSNorm).
type RMSNorm struct {
	Weight *autograd.Parameter // of Shape; nil: none
	Shape  []int               // the last dimensions of x
	Eps    float64             // added to the mean square; 0: that of [autograd.Tape.RMSNorm]
}

// Forward returns x over its root mean square.
func (l *RMSNorm) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if l == nil {
		return noLayer(t, "RMSNorm")
	}
	return t.Layer(l.Weight, "weight", func() *autograd.Variable { return t.RMSNorm(x, t.Param(l.Weight), l.Eps, l.Shape...) })
}

// Parameters are "weight", if there is one.
func (l *RMSNorm) Parameters() autograd.Parameters {
	if l == nil {
		return nil
	}
	return weightAndBias(l.Weight, nil)
}

// RMSNorm makes a root-mean-square norm over a last dimension of size elements, with weights of 1.
// It takes [NormalizedShape] for several dimensions, [Eps] and [NoAffine].
func (in *Initializer) RMSNorm(size int, options ...LayerOption) *RMSNorm {
	call := fmt.Sprintf("RMSNorm(%d)", size)
	o := in.options(call, options, "NormalizedShape", "Eps", "NoAffine")
	l := &RMSNorm{Shape: o.normalized(size), Eps: in.eps(call, o)}
	if !o.noAffine {
		l.Weight = in.constant(call, 1, l.Shape...)
	}
	return l
}

// enterNorm begins a layer as [autograd.Tape.Enter] does, for a layer that reads its arguments as
// an operation does.
func enterNorm(t *autograd.Tape, weight *autograd.Parameter, layer string) autograd.Entered {
	here := t.EnterLayer("", "")
	if path, ok := weight.Module("weight"); ok && names.Inside(path, here.Around()) {
		return t.EnterLayer(path, layer)
	}
	return here
}

// ForwardAdd returns x + y, and the norm of the sum; see [autograd.Tape.AddLayerNorm]. It reads x
// and y as an operation does, not as a layer, so that [autograd.Variable.Once] counts.
func (l *LayerNorm) ForwardAdd(t *autograd.Tape, x, y *autograd.Variable) (sum, norm *autograd.Variable) {
	if l == nil {
		return noLayer(t, "LayerNorm"), t.Fail(nil)
	}
	defer enterNorm(t, l.Weight, typeName(l)).Leave()
	return t.AddLayerNorm(x, y, t.Param(l.Weight), t.Param(l.Bias), l.Eps, l.Shape...)
}

// ForwardAdd is [LayerNorm.ForwardAdd] with a root-mean-square norm.
func (l *RMSNorm) ForwardAdd(t *autograd.Tape, x, y *autograd.Variable) (sum, norm *autograd.Variable) {
	if l == nil {
		return noLayer(t, "RMSNorm"), t.Fail(nil)
	}
	defer enterNorm(t, l.Weight, typeName(l)).Leave()
	return t.AddRMSNorm(x, y, t.Param(l.Weight), l.Eps, l.Shape...)
}
