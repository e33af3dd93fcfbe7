package nn

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// fans returns the number of inputs of each output of a weight, and of outputs of each input: the
// second and the first dimension, each times the product of the dimensions after the second.
func fans(name string, shape tensor.Shape) (in, out float64, err error) {
	if len(shape) < 2 {
		return 0, 0, fmt.Errorf("%s: %w %v: want at least two dimensions", name, tensor.ErrShape, shape)
	}
	field := 1.0
	for _, n := range shape[2:] {
		field *= float64(n)
	}
	return field * float64(shape[1]), field * float64(shape[0]), nil
}

// drawn draws with a standard deviation, uniformly or from a normal distribution.
func drawn(r *rand.Rand, data []float64, std float64, uniform bool) error {
	if !uniform {
		return fillWith(data, func() float64 { return std * r.NormFloat64() })
	}
	bound := math.Sqrt(3) * std
	return fillWith(data, func() float64 { return bound * (2*r.Float64() - 1) })
}

// InitXavierUniform draws uniformly with the deviation gain*sqrt(2/(inputs+outputs))
// (torch.nn.init.xavier_uniform_). The default gain is 1; see [Gain].
func InitXavierUniform(gain ...float64) Initial { return xavier("InitXavierUniform", gain, true) }

// InitXavierNormal draws as InitXavierUniform, from a normal distribution
// (torch.nn.init.xavier_normal_).
func InitXavierNormal(gain ...float64) Initial { return xavier("InitXavierNormal", gain, false) }

func xavier(name string, gain []float64, uniform bool) Initial {
	return func(r *rand.Rand, shape tensor.Shape, data []float64) error {
		g, err := gainOf(name, gain)
		if err != nil {
			return err
		}
		in, out, err := fans(name, shape)
		if err != nil {
			return err
		}
		return drawn(r, data, g*math.Sqrt(2/(in+out)), uniform)
	}
}

// Kaiming are the options of torch.nn.init.kaiming_uniform_ and kaiming_normal_. The zero value has
// their defaults.
type Kaiming struct {
	A            float64 // the slope of leaky_relu
	FanOut       bool    // mode="fan_out": the outputs count, not the inputs
	Nonlinearity string  // as [Gain] takes it; "": leaky_relu
}

// InitKaimingUniform draws uniformly with the deviation gain/sqrt(inputs)
// (torch.nn.init.kaiming_uniform_).
func InitKaimingUniform(k Kaiming) Initial { return kaiming("InitKaimingUniform", k, true) }

// InitKaimingNormal draws as InitKaimingUniform, from a normal distribution
// (torch.nn.init.kaiming_normal_).
func InitKaimingNormal(k Kaiming) Initial { return kaiming("InitKaimingNormal", k, false) }

func kaiming(name string, k Kaiming, uniform bool) Initial {
	return func(r *rand.Rand, shape tensor.Shape, data []float64) error {
		if k.Nonlinearity == "" {
			k.Nonlinearity = "leaky_relu"
		}
		gain, err := Gain(k.Nonlinearity, k.A)
		if err != nil {
			return err
		}
		fan, out, err := fans(name, shape)
		if err != nil {
			return err
		}
		if k.FanOut {
			fan = out
		}
		return drawn(r, data, gain/math.Sqrt(fan), uniform)
	}
}

// Gain returns the factor for the deviation of weights before an activation of that name: linear,
// conv1d to conv3d, sigmoid, tanh, relu, selu, or leaky_relu with a slope, by default 0.01
// (torch.nn.init.calculate_gain).
func Gain(nonlinearity string, slope ...float64) (float64, error) {
	switch nonlinearity {
	case "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid":
		return 1, nil
	case "tanh":
		return 5.0 / 3, nil
	case "relu":
		return math.Sqrt2, nil
	case "selu":
		return 0.75, nil
	case "leaky_relu":
		a := 0.01
		if len(slope) > 0 {
			a = slope[0]
		}
		return math.Sqrt(2 / (1 + a*a)), finiteOr("Gain", a)
	}
	return 0, fmt.Errorf("nn: Gain: %w: there is no nonlinearity %q", autograd.ErrInvalid, nonlinearity)
}
