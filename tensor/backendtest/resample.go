package backendtest

import (
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// picture returns a random shape of pictures, or of lengths.
func (c *trial[T]) picture(dims int) []int {
	shape := []int{c.rand.IntN(4), 1 + c.rand.IntN(3)}
	for range dims {
		shape = append(shape, 1+c.rand.IntN(12))
	}
	if c.class == manyElements && !c.r.few {
		shape[0], shape[len(shape)-1] = 3, 100+c.rand.IntN(100)
	}
	return shape
}

// asPlanes returns an array with two last dimensions to resample.
func asPlanes(a reference.Array) reference.Array {
	a.Shape = slices.Insert(slices.Clone(a.Shape), max(0, len(a.Shape)-1), 1)
	return a
}

// resampled is a call of the forward pass and of the gradient, with the expected results.
type resampled[T kernel.Float] struct {
	op         string
	x, y       []int
	rows, cols reference.Sample
	forward    func(x *tensor.Tensor) (*tensor.Tensor, error)
	backward   func(dy *tensor.Tensor) (*tensor.Tensor, error)
}

func (v resampled[T]) run(c *trial[T]) {
	x, dy := c.operand(v.x...), c.operand(v.y...)
	whole := func(a reference.Array) reference.Array {
		if v.rows == nil {
			return asPlanes(a)
		}
		return a
	}
	rows := v.rows
	if rows == nil {
		rows = reference.SampleNearest(1)
	}
	c.dirty()
	y, err := v.forward(x.Tensor)
	want := reference.Resample(whole(x.array()), whole(reference.Array{Shape: v.y}).Shape, rows, v.cols)
	want.Shape = v.y
	c.gave(v.op, y, err, want, terms[T](4))
	c.dirty()
	dx, err := v.backward(dy.Tensor)
	want = reference.ResampleGrad(whole(dy.array()), whole(reference.Array{Shape: v.x}).Shape, rows, v.cols)
	want.Shape = v.x
	c.gave(v.op+"Grad", dx, err, want, averages[T](len(dy.data)))
	x.unchanged(v.op)
	dy.unchanged(v.op)
}

func interpolateTrial[T kernel.Float](c *trial[T]) {
	cfg := tensor.InterpolateConfig{Bilinear: c.rand.IntN(2) == 0}
	cfg.AlignCorners = cfg.Bilinear && c.rand.IntN(2) == 0
	dims := 2
	if !cfg.Bilinear {
		dims = 1 + c.rand.IntN(2)
	}
	x := c.picture(dims)
	y := slices.Clone(x)
	byScale := c.rand.IntN(2) == 0
	samples := make([]reference.Sample, 2-dims, 2)
	for d, in := range x[2:] {
		out := 1 + c.rand.IntN(3*in)
		if c.rand.IntN(4) == 0 {
			out = in * (1 + c.rand.IntN(3))
		}
		step := float64(in) / float64(out)
		if byScale {
			factor := []float64{2, 3, 1, 0.5, 1.5, 2.7, 1 / 3.0}[c.rand.IntN(7)]
			if math.Floor(float64(in)*factor) < 1 {
				factor = 2
			}
			out, step = int(math.Floor(float64(in)*factor)), 1/factor
			cfg.ScaleFactor = append(cfg.ScaleFactor, factor)
		} else {
			cfg.Size = append(cfg.Size, out)
		}
		y[2+d] = out
		switch {
		case cfg.AlignCorners && out == 1:
			samples = append(samples, reference.SampleLinear(0, 0))
		case cfg.AlignCorners:
			samples = append(samples, reference.SampleLinear(float64(in-1)/float64(out-1), 0))
		case cfg.Bilinear:
			samples = append(samples, reference.SampleLinear(step, step/2-0.5))
		default:
			samples = append(samples, reference.SampleNearest(step))
		}
	}
	resampled[T]{"Interpolate", x, y, samples[0], samples[1],
		func(x *tensor.Tensor) (*tensor.Tensor, error) { return c.r.Interpolate(c.ctx, x, cfg) },
		func(dy *tensor.Tensor) (*tensor.Tensor, error) { return c.r.InterpolateGrad(c.ctx, dy, x, cfg) }}.run(c)
}

func edgePadTrial[T kernel.Float](c *trial[T]) {
	reflects := c.rand.IntN(2) == 0
	x := c.picture(1 + c.rand.IntN(2))
	x = x[c.rand.IntN(3):] // with fewer dimensions before the padded ones
	y, before, after := slices.Clone(x), make([]int, len(x)), make([]int, len(x))
	var samples []reference.Sample
	for i := max(0, len(x)-2); i < len(x); i++ {
		most := 5
		if reflects {
			most = max(0, x[i]-1)
		}
		before[i], after[i] = c.rand.IntN(most+1), c.rand.IntN(most+1)
		if x[i] == 0 {
			before[i], after[i] = 0, 0
		}
		if c.rand.IntN(4) == 0 {
			before[i] = -c.rand.IntN(x[i] + 1)
		}
		if c.rand.IntN(4) == 0 {
			after[i] = -c.rand.IntN(x[i] + min(0, before[i]) + 1)
		}
		y[i] += before[i] + after[i]
		if reflects {
			samples = append(samples, reference.SampleReflect(before[i]))
		} else {
			samples = append(samples, reference.SampleReplicate(before[i]))
		}
	}
	f, g := c.r.ReplicationPad, c.r.ReplicationPadGrad
	if reflects {
		f, g = c.r.ReflectionPad, c.r.ReflectionPadGrad
	}
	v := resampled[T]{op: "EdgePad", x: x, y: y, cols: samples[len(samples)-1],
		forward:  func(x *tensor.Tensor) (*tensor.Tensor, error) { return f(c.ctx, x, before, after) },
		backward: func(dy *tensor.Tensor) (*tensor.Tensor, error) { return g(c.ctx, dy, x, before, after) }}
	if len(samples) == 2 {
		v.rows = samples[0]
	}
	v.run(c)
}
