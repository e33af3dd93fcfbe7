package nn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Linear makes a dense layer (torch.nn.Linear). Weights and biases are drawn uniformly from
// ±1/sqrt(inputs), PyTorch's default, in float64 and in the order of the parameters. It takes
// [NoBias].
func (in *Initializer) Linear(inputs, outputs int, options ...LayerOption) *Linear {
	call := fmt.Sprintf("Linear(%d, %d)", inputs, outputs)
	if inputs < 1 || outputs < 1 {
		in.fail(call, fmt.Errorf("%w: want at least one input and one output", autograd.ErrInvalid))
	}
	o := in.options(call, options, "NoBias")
	l := &Linear{Weight: in.fanIn(call, inputs, outputs, inputs)}
	if !o.noBias {
		l.Bias = in.fanIn(call, inputs, outputs)
	}
	return l
}

// fanIn makes a parameter drawn uniformly from ±1/sqrt(fan). This is PyTorch's default for dense
// layers and convolutions, where fan is the number of products in an output, and for recurrent
// layers, where fan is the number of states.
func (in *Initializer) fanIn(call string, fan int, shape ...int) *autograd.Parameter {
	bound := 1 / math.Sqrt(float64(fan))
	return in.parameter(call, func() float64 { return (2*in.rand.Float64() - 1) * bound }, shape...)
}

// Uniform makes a parameter of numbers drawn uniformly from [low, high) in float64
// (torch.nn.init.uniform_).
func (in *Initializer) Uniform(low, high float64, shape ...int) *autograd.Parameter {
	call := fmt.Sprintf("Uniform(%v, %v) of %v", low, high, tensor.Shape(shape))
	if !(low <= high && high-low <= math.MaxFloat64) {
		in.fail(call, fmt.Errorf("%w: want finite bounds, the lower one first", autograd.ErrInvalid))
	}
	return in.parameter(call, func() float64 { return low + (high-low)*in.rand.Float64() }, shape...)
}

// Normal makes a parameter of numbers drawn from a normal distribution in float64
// (torch.nn.init.normal_).
func (in *Initializer) Normal(mean, std float64, shape ...int) *autograd.Parameter {
	call := fmt.Sprintf("Normal(%v, %v) of %v", mean, std, tensor.Shape(shape))
	if !(math.Abs(mean) <= math.MaxFloat64 && std >= 0 && std <= math.MaxFloat64) {
		in.fail(call, fmt.Errorf("%w: want a mean, and a standard deviation of at least 0", autograd.ErrInvalid))
	}
	return in.parameter(call, func() float64 { return mean + std*in.rand.NormFloat64() }, shape...)
}

// Zeros makes a parameter of zeros.
func (in *Initializer) Zeros(shape ...int) *autograd.Parameter {
	return in.constant(fmt.Sprintf("Zeros of %v", tensor.Shape(shape)), 0, shape...)
}

// Ones makes a parameter of ones.
func (in *Initializer) Ones(shape ...int) *autograd.Parameter {
	return in.constant(fmt.Sprintf("Ones of %v", tensor.Shape(shape)), 1, shape...)
}

// constant makes a parameter of equal numbers.
func (in *Initializer) constant(call string, v float64, shape ...int) *autograd.Parameter {
	return in.parameter(call, func() float64 { return v }, shape...)
}

// Parameter makes a parameter with a copy of data, which must have as many elements as the shape.
// Without a shape the parameter has one dimension.
func (in *Initializer) Parameter(data []float64, shape ...int) *autograd.Parameter {
	t := in.Tensor(data, shape...)
	if t.Released() {
		return in.noParameter()
	}
	p, err := autograd.NewParameter(t)
	if err != nil {
		in.Fail(err)
		return in.noParameter()
	}
	in.made[len(in.made)-1] = made{release: p.ReleaseContext} // and its gradient
	return p
}

// parameter allocates before it draws, so that a size that the device can't hold is an error,
// instead of exhausting the host's memory.
func (in *Initializer) parameter(call string, next func() float64, shape ...int) *autograd.Parameter {
	if !in.usable(call) {
		return in.noParameter()
	}
	ctx := in.context(memcache.CategoryParameter)
	t, err := in.rt.New(ctx, in.dtype, shape...)
	if err == nil {
		err = in.fill(ctx, t, next)
	}
	if err != nil {
		in.fail(call, errors.Join(err, t.ReleaseContext(ctx)))
		return in.noParameter()
	}
	return in.parameterOf(call, t)
}

// parameterOf makes a parameter of t, which the initialiser releases.
func (in *Initializer) parameterOf(call string, t *tensor.Tensor) *autograd.Parameter {
	p, err := autograd.NewParameter(t)
	if err != nil {
		in.fail(call, errors.Join(err, t.Release()))
		return in.noParameter()
	}
	in.add(made{release: p.ReleaseContext})
	return p
}

// dry reports whether the device keeps no values; then none are drawn.
func (in *Initializer) dry() bool { return in.rt.Device().Properties().Dry }

func (in *Initializer) fill(ctx context.Context, t *tensor.Tensor, next func() float64) error {
	if in.dry() {
		return nil
	}
	if in.dtype == tensor.Float32 {
		return tensor.CopyFrom(ctx, t, draw[float32](t.Elements(), next))
	}
	return tensor.CopyFrom(ctx, t, draw[float64](t.Elements(), next))
}

func draw[T float32 | float64](n int, next func() float64) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = T(next())
	}
	return s
}

// noParameter returns a parameter without a value, for use after an error. A tape that reads it
// fails with that error.
func (in *Initializer) noParameter() *autograd.Parameter { return autograd.MissingParameter(in.err) }

// Tensor makes a tensor with a copy of data in the initialiser's dtype; see [tensor.FromSlice]. In
// the body of [Initializer.Steps] it belongs to the step.
func (in *Initializer) Tensor(data []float64, shape ...int) *tensor.Tensor {
	return in.tensor(fmt.Sprintf("%d numbers", len(data)), memcache.CategoryInput, func(ctx context.Context) (*tensor.Tensor, error) {
		if in.dtype == tensor.Float64 {
			return tensor.FromSlice(ctx, in.rt, data, shape...)
		}
		narrow := make([]float32, len(data))
		for i, v := range data {
			narrow[i] = float32(v)
		}
		return tensor.FromSlice(ctx, in.rt, narrow, shape...)
	})
}

// Labels makes a tensor of class labels; see [tensor.Labels]. In the body of [Initializer.Steps] it
// belongs to the step.
func (in *Initializer) Labels(labels []int, classes int) *tensor.Tensor {
	return in.tensor(fmt.Sprintf("%d labels", len(labels)), memcache.CategoryInput, func(ctx context.Context) (*tensor.Tensor, error) {
		return tensor.Labels(ctx, in.rt, labels, classes)
	})
}

// context returns the context for allocations of a category.
func (in *Initializer) context(c memcache.Category) context.Context {
	return memcache.WithCategory(tensor.Detached(in.ctx), c)
}

// tensor makes a tensor that the initialiser releases.
func (in *Initializer) tensor(call string, c memcache.Category, make func(context.Context) (*tensor.Tensor, error)) *tensor.Tensor {
	if !in.usable(call) {
		return tensor.Missing(in.err)
	}
	t, err := make(in.context(c))
	if err != nil {
		in.fail(call, err)
		return tensor.Missing(in.err)
	}
	m := made{release: t.ReleaseContext}
	if c == memcache.CategoryInput {
		m.data = t
	}
	in.add(m)
	return t
}

// Own makes the initialiser close o, such as an optimiser, and returns it. If o has a method Err
// that returns an error, that error sticks to the initialiser. If the initialiser has an error
// before the call, the caller closes o.
//
//	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
func Own[O io.Closer](in *Initializer, o O) O {
	if check.Nil(o) {
		in.fail("Own", fmt.Errorf("%w: the %T is nil", autograd.ErrInvalid, o))
	}
	if !in.usable("Own") {
		return o
	}
	if e, ok := any(o).(interface{ Err() error }); ok && e.Err() != nil {
		in.Fail(e.Err())
	}
	in.add(made{release: func(context.Context) error { return o.Close() }})
	return o
}
