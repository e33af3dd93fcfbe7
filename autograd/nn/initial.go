package nn

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Initial computes the initial values of a parameter (torch.nn.init): it fills data, row-major, for
// the shape. The functions of this package draw in float64 and in the order of the elements.
// [Initializer.Draw] makes a parameter with an Initial, and [Initializer.Reset] overwrites one.
// Programs can write their own.
type Initial func(r *rand.Rand, shape tensor.Shape, data []float64) error

// Draw makes a parameter of the shape with the values of initial.
func (in *Initializer) Draw(initial Initial, shape ...int) *autograd.Parameter {
	call := fmt.Sprintf("Draw of %v", tensor.Shape(shape))
	if !in.usable(call) {
		return in.noParameter()
	}
	ctx := tensor.Detached(in.ctx)
	t, err := in.rt.New(ctx, in.dtype, shape...)
	if err != nil {
		in.fail(call, err)
		return in.noParameter()
	}
	p := in.parameterOf(call, t)
	in.reset(call, p, initial)
	if in.err != nil {
		return in.noParameter()
	}
	return p
}

// Reset overwrites a parameter of any dtype in place, such as a layer's:
//
//	in.Reset(conv.Weight, nn.InitKaimingNormal(nn.Kaiming{FanOut: true, Nonlinearity: "relu"}))
func (in *Initializer) Reset(p *autograd.Parameter, initial Initial) {
	call := "Reset"
	if !in.usable(call) {
		return
	}
	if err := p.Err(); err != nil {
		in.fail(call, err)
		return
	}
	in.reset(call+" of "+called(p), p, initial)
}

func (in *Initializer) reset(call string, p *autograd.Parameter, initial Initial) {
	if initial == nil {
		in.fail(call, fmt.Errorf("%w: the Initial is nil", autograd.ErrInvalid))
		return
	}
	if in.dry() {
		return
	}
	data := make([]float64, p.Value().Elements())
	if err := initial(in.rand, p.Value().Shape(), data); err != nil {
		in.fail(call, err)
		return
	}
	if p.Value().Dtype() == tensor.Float64 {
		in.fail(call, tensor.CopyFrom(in.ctx, p.Value(), data))
		return
	}
	narrow := make([]float32, len(data))
	for i, v := range data {
		narrow[i] = float32(v)
	}
	in.fail(call, tensor.CopyFrom(in.ctx, p.Value(), narrow))
}

// fillWith sets each element to a result of next.
func fillWith(data []float64, next func() float64) error {
	for i := range data {
		data[i] = next()
	}
	return nil
}

// finiteOr returns an error unless all numbers are finite.
func finiteOr(name string, vs ...float64) error {
	for _, v := range vs {
		if !(math.Abs(v) <= math.MaxFloat64) {
			return fmt.Errorf("%s: %w: %v: want finite numbers", name, autograd.ErrInvalid, vs)
		}
	}
	return nil
}

// InitConstant sets all elements to v (torch.nn.init.constant_; zeros_ and ones_ are 0 and 1).
func InitConstant(v float64) Initial {
	return func(_ *rand.Rand, _ tensor.Shape, data []float64) error {
		return fillWith(data, func() float64 { return v })
	}
}

// InitUniform draws from [low, high) (torch.nn.init.uniform_, whose defaults are 0 and 1).
func InitUniform(low, high float64) Initial {
	return func(r *rand.Rand, _ tensor.Shape, data []float64) error {
		if !(low <= high && high-low <= math.MaxFloat64) {
			return fmt.Errorf("InitUniform: %w: from %v to %v: want finite bounds, the lower one first", autograd.ErrInvalid, low, high)
		}
		return fillWith(data, func() float64 { return low + (high-low)*r.Float64() })
	}
}

// InitNormal draws from a normal distribution (torch.nn.init.normal_, whose defaults are 0 and 1).
func InitNormal(mean, std float64) Initial {
	return func(r *rand.Rand, _ tensor.Shape, data []float64) error {
		if err := finiteOr("InitNormal", mean, std); err != nil || std < 0 {
			return fmt.Errorf("InitNormal: %w: mean %v, deviation %v: want a mean, and a standard deviation of at least 0", autograd.ErrInvalid, mean, std)
		}
		return fillWith(data, func() float64 { return mean + std*r.NormFloat64() })
	}
}

// InitTruncNormal draws from a normal distribution that is truncated to [low, high]
// (torch.nn.init.trunc_normal_, whose defaults are 0, 1, -2 and 2).
func InitTruncNormal(mean, std, low, high float64) Initial {
	return func(r *rand.Rand, _ tensor.Shape, data []float64) error {
		if err := finiteOr("InitTruncNormal", mean, std, low, high); err != nil || !(std > 0 && low < high) {
			return fmt.Errorf("InitTruncNormal: %w: mean %v, deviation %v, from %v to %v", autograd.ErrInvalid, mean, std, low, high)
		}
		share := func(v float64) float64 { return (1 + math.Erf((v-mean)/std/math.Sqrt2)) / 2 }
		from, to := share(low), share(high)
		return fillWith(data, func() float64 {
			u := from + (to-from)*r.Float64() // of the distribution's area
			return min(max(mean+std*math.Sqrt2*math.Erfinv(2*u-1), low), high)
		})
	}
}

// InitEye sets the diagonal of a matrix to 1, and all other elements to 0 (torch.nn.init.eye_).
func InitEye() Initial {
	return func(_ *rand.Rand, shape tensor.Shape, data []float64) error {
		if len(shape) != 2 {
			return fmt.Errorf("InitEye: %w %v: want a matrix", tensor.ErrShape, shape)
		}
		clear(data)
		for i := range min(shape[0], shape[1]) {
			data[i*shape[1]+i] = 1
		}
		return nil
	}
}

// InitOrthogonal makes a matrix of the first dimension by all others. Its rows, or its columns if
// there are fewer of them, are orthogonal and of length gain, by default 1
// (torch.nn.init.orthogonal_). It is computed on the host.
func InitOrthogonal(gain ...float64) Initial {
	return func(r *rand.Rand, shape tensor.Shape, data []float64) error {
		length, err := gainOf("InitOrthogonal", gain)
		if err != nil || len(data) == 0 {
			return err
		}
		if len(shape) < 2 {
			return fmt.Errorf("InitOrthogonal: %w %v: want two dimensions at least", tensor.ErrShape, shape)
		}
		rows, cols := shape[0], len(data)/shape[0]
		vectors, step := cols, 1 // where a vector's elements and the vectors lie
		stride := cols
		if rows < cols {
			vectors, step, stride = rows, cols, 1
		}
		fillWith(data, r.NormFloat64)
		orthogonalize(data, vectors, len(data)/vectors, step, stride)
		for i := range data {
			data[i] *= length
		}
		return nil
	}
}

// orthogonalize makes vectors of n elements orthonormal, one after the other (Gram-Schmidt, each
// vector twice against rounding errors). The i-th element of vector v is at v*step + i*stride.
func orthogonalize(data []float64, vectors, n, step, stride int) {
	dot := func(v, w int) (sum float64) {
		for i := range n {
			sum += data[v*step+i*stride] * data[w*step+i*stride]
		}
		return sum
	}
	for v := range vectors {
		for range 2 {
			for w := range v {
				d := dot(v, w)
				for i := range n {
					data[v*step+i*stride] -= d * data[w*step+i*stride]
				}
			}
			length := math.Sqrt(dot(v, v))
			for i := range n {
				data[v*step+i*stride] /= length
			}
		}
	}
}

func gainOf(name string, gain []float64) (float64, error) {
	switch len(gain) {
	case 0:
		return 1, nil
	case 1:
		return gain[0], finiteOr(name, gain...)
	}
	return 0, fmt.Errorf("%s: %w: %d gains: want one", name, autograd.ErrInvalid, len(gain))
}

// called returns a parameter's name for an error.
func called(p *autograd.Parameter) string {
	if p.Name() == "" {
		return "a parameter"
	}
	return fmt.Sprintf("parameter %q", p.Name())
}
