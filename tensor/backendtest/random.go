package backendtest

import (
	"math"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func randomOps[T kernel.Float]() []operation[T] {
	return []operation[T]{
		{"Dropout", dropoutTrial[T]}, {"Uniform", uniformTrial[T]}, {"Normal", normalTrial[T]}, {"Bernoulli", bernoulliTrial[T]},
		{"RandPerm", randPermTrial[T]}, {"Categorical", categoricalTrial[T]},
	}
}

// random returns a random stream, sometimes with its seed in device memory, and its reference.
func (c *trial[T]) random() (tensor.Random, reference.Random) {
	r := tensor.Random{Seed: c.rand.Uint64(), Stream: c.rand.Uint64()}
	want := reference.Random{Seed: r.Seed, Stream: r.Stream}
	if c.rand.IntN(2) == 0 {
		live, err := tensor.FromSlice(c.ctx, c.r.Runtime, []int64{int64(r.Seed)}, 1)
		require.NoError(c.t, err)
		r.Seed, r.Live = c.rand.Uint64(), live
	}
	return r, want
}

// dtype returns the dtype of the trial's tensors.
func (c *trial[T]) dtype() tensor.Dtype {
	if c.narrow != 0 {
		return c.narrow
	}
	return tensor.DtypeOf[T]()
}

// rounded returns a number, computed in T, rounded to the dtype of the trial's tensors.
func (c *trial[T]) rounded(v float64) float64 {
	if v = float64(T(v)); c.narrow != 0 {
		return c.nearest(v)
	}
	return v
}

func dropoutTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.shape()...)
	p := []float64{0, 0.25, 0.9, 1}[c.rand.IntN(4)]
	r, random := c.random()
	want := reference.Result{Array: x.array(), Size: make([]float64, len(x.data))}
	for i, v := range want.Data {
		want.Data[i] = v * float64(T(1/(1-p)))
		if random.Fraction(uint64(i), false) < p {
			want.Data[i] = v * 0
		}
		want.Size[i] = math.Abs(want.Data[i])
	}
	dst := c.destination(x, nil)
	c.dirty()
	y, err := c.r.Dropout(c.ctx, dst.tensor(), x.Tensor, p, r)
	c.went("Dropout", dst, y, err, want, exact, x)
	require.False(c.t, p == 1 && slices.ContainsFunc(want.Data, func(v float64) bool { return v != 0 && !math.IsNaN(v) }))
}

func uniformTrial[T kernel.Float](c *trial[T]) {
	shape := c.shape()
	r, random := c.random()
	bounds := []float64{0, 1}
	if c.rand.IntN(2) == 0 {
		bounds = []float64{c.rounded(c.rand.NormFloat64() * 100), c.rounded(c.rand.NormFloat64())}
		slices.Sort(bounds)
	}
	c.dirty()
	y, err := c.r.Uniform(c.ctx, r, bounds[0], bounds[1], c.dtype(), shape...)
	want := random.Uniform(bounds[0], bounds[1], !single[T](), c.rounded, shape)
	c.gave("Uniform", y, err, want, exact)
	for _, v := range c.elements(y) {
		require.True(c.t, float64(v) >= bounds[0] && (float64(v) < bounds[1] || bounds[0] == bounds[1]), "%v from %v", v, bounds)
	}
}

func normalTrial[T kernel.Float](c *trial[T]) {
	shape := c.shape()
	r, random := c.random()
	mean, deviation := 0.0, 1.0
	if c.rand.IntN(2) == 0 {
		mean, deviation = c.rand.NormFloat64()*10, c.rand.Float64()*3
	}
	c.dirty()
	y, err := c.r.Normal(c.ctx, r, mean, deviation, c.dtype(), shape...)
	c.gave("Normal", y, err, random.Normal(mean, deviation, !single[T](), shape), tolerance{result: 2, terms: 16 * 0x1p-53})
}

func bernoulliTrial[T kernel.Float](c *trial[T]) {
	p := c.operand(c.shape()...)
	if c.kind == ordinary {
		for i := range p.data {
			p.data[i] = T(c.rand.Float64())
		}
		p = c.operandOf(p.data, p.Shape())
	}
	r, random := c.random()
	c.dirty()
	y, err := c.r.Bernoulli(c.ctx, r, p.Tensor)
	c.gave("Bernoulli", y, err, random.Bernoulli(p.array()), exact)
	p.unchanged("Bernoulli")
}

func randPermTrial[T kernel.Float](c *trial[T]) {
	n := elements(c.shape())
	r, random := c.random()
	c.dirty()
	y, err := c.r.RandPerm(c.ctx, r, n)
	require.NoError(c.t, err)
	got, err := tensor.ToSlice[int64](c.ctx, y, nil)
	require.NoError(c.t, err)
	require.Equal(c.t, random.RandPerm(n), append([]int64{}, got...), "of %d", n)
}

func categoricalTrial[T kernel.Float](c *trial[T]) {
	shape := c.ranked()
	x := c.operand(shape...)
	last := len(shape) - 1
	r, random := c.random()
	choice := reference.Choice{Temperature: 1, TopP: 1, TopK: max(1, shape[last])}
	var options []tensor.CategoricalOption
	if c.rand.IntN(2) == 0 {
		choice.Temperature = []float64{0, 0.3, 2, 1e-300, 1e300}[c.rand.IntN(5)]
		options = append(options, tensor.Temperature(choice.Temperature))
	}
	if c.rand.IntN(2) == 0 {
		choice.TopK = 1 + c.rand.IntN(shape[last]+2)
		options = append(options, tensor.TopK(choice.TopK))
	}
	if c.rand.IntN(2) == 0 {
		choice.TopP = []float64{0, 1, c.rand.Float64()}[c.rand.IntN(3)]
		options = append(options, tensor.TopP(choice.TopP))
	}
	choice.TopK = min(choice.TopK, max(1, shape[last]))
	c.dirty()
	y, err := c.r.Categorical(c.ctx, r, x.Tensor, options...)
	if shape[last] == 0 {
		c.refused("Categorical", y, err, tensor.ErrShape)
		return
	}
	require.NoError(c.t, err)
	require.Equal(c.t, append([]int{}, shape[:last]...), append([]int{}, y.Shape()...))
	got, err := tensor.ToSlice[int32](c.ctx, y, nil)
	require.NoError(c.t, err)
	require.Equal(c.t, append([]int32{}, random.Categorical(x.array(), choice)...), append([]int32{}, got...), "%+v of %v", choice, shape)
	x.unchanged("Categorical")
}
