package backendtest

import (
	"fmt"
	"math"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func normalizeOps[T kernel.Float]() []operation[T] {
	return []operation[T]{{"Normalize", normalizeTrial[T]}, {"Normalize", normalizeTrial[T]}, {"BatchNorm", func(c *trial[T]) { batchNormTrial(c, true) }}, {"BatchNorm of running statistics", func(c *trial[T]) { batchNormTrial(c, false) }}}
}

// normalized is the tolerance of results of T from statistics in float64. The variance of numbers
// that are close to each other loses digits with their distance from 0.
func normalized[T kernel.Float](n int) tolerance {
	tol := inDouble[T](16)
	tol.terms, tol.inside = (64+float64(n))*0x1p-53+unit[T](), 1
	return tol
}

// finiteKind avoids numbers that leave few results besides infinities and NaN, or whose squares
// overflow.
func (c *trial[T]) finiteKind() {
	if c.kind == special || c.kind == large {
		c.kind = ordinary
	}
}

// normalization returns a random normalisation of x, with the shapes of x and of the weights.
func (c *trial[T]) normalization() (cfg tensor.NormConfig, n reference.Normalized, x, w []int) {
	if c.rand.IntN(2) == 0 {
		cfg.Eps = []float64{1e-3, 0.5}[c.rand.IntN(2)]
	}
	n.Eps, n.Centered = cfg.Eps, true
	if c.rand.IntN(3) == 0 { // groups of channels
		cfg.Groups = 1 + c.rand.IntN(3)
		per := 1 + c.rand.IntN(4)
		x = append([]int{c.rand.IntN(5), cfg.Groups * per}, []int{1 + c.rand.IntN(6), 1 + c.rand.IntN(90)}[:c.rand.IntN(3)]...)
		inner := elements(x[2:])
		row := max(1, per*inner)
		n.Rows, n.Weights = x[0]*cfg.Groups, x[1]
		n.Row, n.Weight = func(i int) int { return i / row }, func(i int) int { return i / max(1, inner) % x[1] }
		w = x[1:2]
	} else {
		x = c.ranked()
		if c.rand.IntN(8) == 0 {
			x = []int{200 + c.rand.IntN(300), 1 + c.rand.IntN(70)}
		}
		w = x[c.rand.IntN(len(x)):]
		cfg.Shape, cfg.RMS = w, c.rand.IntN(3) == 0
		n.Centered = !cfg.RMS
		n.Rows, n.Weights = elements(x[:len(x)-len(w)]), elements(w)
		row := max(1, n.Weights)
		n.Row, n.Weight = func(i int) int { return i / row }, func(i int) int { return i % row }
	}
	if n.Eps == 0 {
		n.Eps = 1e-5
		if cfg.RMS {
			n.Eps = 2 * unit[T]()
		}
	}
	return cfg, n, slices.Clone(x), slices.Clone(w)
}

func normalizeTrial[T kernel.Float](c *trial[T]) {
	c.finiteKind()
	cfg, n, xs, ws := c.normalization()
	x, dy := c.operand(xs...), c.operand(xs...)
	var weight, bias *operand[T]
	var w, b reference.Array
	if c.rand.IntN(3) > 0 {
		weight = c.operand(ws...)
		w = weight.array()
		if !cfg.RMS {
			bias = c.operand(ws...)
			b = bias.array()
		}
	}
	c.dirty()
	y, stats, err := c.r.Normalize(c.ctx, x.Tensor, weight.tensor(), bias.tensor(), cfg)
	tol := normalized[T](len(x.data))
	c.gave("Normalize", y, err, n.Forward(x.array(), w, b), tol)
	c.addNormalize(x, weight.tensor(), bias.tensor(), cfg)
	want := tensor.NormGrads{Input: c.rand.IntN(4) > 0, Weight: c.rand.IntN(4) > 0, Bias: c.rand.IntN(4) > 0}
	c.dirty()
	dx, dw, db, err := c.r.NormalizeGrad(c.ctx, dy.Tensor, x.Tensor, weight.tensor(), stats, cfg, want)
	c.gave3("NormalizeGrad", n, x, dy, w, ws, want, []*tensor.Tensor{dx, dw, db}, err, tol)
	alone := tensor.NormGrads{Weight: true, Bias: true}
	dx, dw, db, err = c.r.NormalizeGrad(c.ctx, dy.Tensor, x.Tensor, weight.tensor(), stats, cfg, alone)
	c.gave3("NormalizeGrad", n, x, dy, w, ws, alone, []*tensor.Tensor{dx, dw, db}, err, tol)
	if want.Input && c.kind == ordinary {
		onto := c.operand(x.Shape()...)
		dx, _, _, err := c.r.NormalizeGrad(c.ctx, dy.Tensor, x.Tensor, weight.tensor(), stats, cfg, want)
		require.NoError(c.t, err)
		sum, err := c.r.Add(c.ctx, onto.Tensor, dx)
		require.NoError(c.t, err)
		want.Onto = onto.Tensor
		added, scale, shift, err := c.r.NormalizeGrad(c.ctx, dy.Tensor, x.Tensor, weight.tensor(), stats, cfg, want)
		require.NoError(c.t, err)
		require.Same(c.t, onto.Tensor, added)
		require.Equal(c.t, c.elements(sum), c.elements(added), "onto another gradient")
		require.Equal(c.t, [2]bool{want.Weight, want.Bias}, [2]bool{scale != nil, shift != nil})
	}
	x.unchanged("Normalize")
	dy.unchanged("Normalize")
}

// addNormalize checks that AddNormalize is bit-identical to Add and Normalize, with new memory and
// in the memory of an operand.
func (c *trial[T]) addNormalize(x *operand[T], weight, bias *tensor.Tensor, cfg tensor.NormConfig) {
	c.t.Helper()
	if x.Elements() == 0 { // the statistics of no elements are undefined
		return
	}
	other := c.operand(x.Shape()...)
	sum, err := c.r.Add(c.ctx, x.Tensor, other.Tensor)
	require.NoError(c.t, err)
	y, stats, err := c.r.Normalize(c.ctx, sum, weight, bias, cfg)
	require.NoError(c.t, err)
	// As text, because of NaN.
	want := fmt.Sprint(c.elements(sum), c.elements(y), get[float64](c.r, stats, nil))
	for donated := range 3 {
		a, err := c.r.Copy(c.ctx, x.Tensor)
		require.NoError(c.t, err)
		b, err := c.r.Copy(c.ctx, other.Tensor)
		require.NoError(c.t, err)
		given := []*tensor.Tensor{nil, a, b}[donated]
		if given != nil {
			tensor.Donate(given)
		}
		c.dirty()
		gotSum, got, gotStats, err := c.r.AddNormalize(c.ctx, a, b, weight, bias, cfg)
		require.NoError(c.t, err)
		require.Equal(c.t, want, fmt.Sprint(c.elements(gotSum), c.elements(got), get[float64](c.r, gotStats, nil)))
		require.Equal(c.t, given != nil && gotSum.Bytes() > 0, given != nil && gotSum.Bytes() > 0 && tensor.MemoryOf(gotSum) == tensor.MemoryOf(given))
	}
}

// gave3 checks the gradients of a normalisation.
func (c *trial[T]) gave3(op string, n reference.Normalized, x, dy *operand[T], w reference.Array, ws []int, want tensor.NormGrads, got []*tensor.Tensor, err error, tol tolerance) {
	c.t.Helper()
	require.NoError(c.t, err)
	dx, dw, db := n.Grads(dy.array(), x.array(), w, ws)
	for i, wanted := range []bool{want.Input, want.Weight, want.Bias} {
		if !wanted {
			require.Nil(c.t, got[i], op)
			continue
		}
		// An infinite gradient times a normalised number that rounds to 0. With float32 the numbers
		// are normalised in float64, so that the weights' gradients have no such product.
		tol.vague = i == 0 || i == 1 && !single[T]()
		tol.tiny = 0
		// The sum of a row's products, each of which may be subnormal, times 1/√(variance+Eps).
		if i == 1 {
			tol.tiny = math.Sqrt(n.Eps) / float64(max(1, len(x.data)))
		}
		c.gave(op+[]string{" of x", " of the weights", " of the bias"}[i], got[i], nil, []reference.Result{dx, dw, db}[i], tol)
	}
}

func batchNormTrial[T kernel.Float](c *trial[T], training bool) {
	c.finiteKind()
	xs := append([]int{1 + c.rand.IntN(5), 1 + c.rand.IntN(5)}, []int{1 + c.rand.IntN(5), 1 + c.rand.IntN(7), 2}[:c.rand.IntN(4)]...)
	if c.rand.IntN(6) == 0 { // several blocks of a GPU for each channel
		xs = []int{2 + c.rand.IntN(3), 1 + c.rand.IntN(2), 1500 + c.rand.IntN(1000)}
	}
	if c.rand.IntN(10) == 0 {
		xs[0] = 0
	}
	inner, channels := elements(xs[2:]), xs[1]
	n := reference.Normalized{Rows: channels, Weights: channels, Eps: 1e-5, Centered: true}
	n.Row = func(i int) int { return i / max(1, inner) % channels }
	n.Weight = n.Row
	x, dy := c.operand(xs...), c.operand(xs...)
	weight, w := c.biasOf(channels, c.rand.IntN(3) > 0)
	bias, b := c.biasOf(channels, c.rand.IntN(3) > 0)
	mean, variance := c.wide().operand(channels), c.wide().operandOf(positives[T](c, channels), []int{channels})
	cfg := tensor.BatchNormConfig{Training: training, Mean: mean.Tensor, Var: variance.Tensor, Momentum: []float64{0, 0.3, math.NaN()}[c.rand.IntN(3)]}
	cfg.Batches = c.batches(4)
	momentum := cfg.Momentum
	switch {
	case momentum == 0:
		momentum = 0.1
	case math.IsNaN(momentum):
		momentum = 0.2
	}
	c.dirty()
	y, stats, err := c.r.BatchNorm(c.ctx, x.Tensor, weight.tensor(), bias.tensor(), cfg)
	if cfg.Training && xs[0]*inner < 2 {
		require.ErrorIs(c.t, err, tensor.ErrShape)
		return
	}
	tol := normalized[T](xs[0] * inner)
	if cfg.Training {
		newMean, newVar := n.Running(x.array(), mean.array().Data, variance.array().Data, momentum)
		mean.became("the running mean", newMean, tol)
		variance.became("the running variance", newVar, tol)
	} else {
		n.Mean, n.Var = mean.array().Data, variance.array().Data
		mean.unchanged("BatchNorm")
		variance.unchanged("BatchNorm")
	}
	counted, err2 := tensor.Item[int64](c.ctx, cfg.Batches)
	require.NoError(c.t, err2)
	require.Equal(c.t, cfg.Training, counted == 5, "%d batches are counted", counted)
	c.gave("BatchNorm", y, err, n.Forward(x.array(), w, b), tol)
	want := tensor.NormGrads{Input: c.rand.IntN(4) > 0, Weight: c.rand.IntN(4) > 0, Bias: c.rand.IntN(4) > 0}
	var dst *operand[T]
	if c.rand.IntN(2) == 0 {
		dst = c.operandOf(slices.Clone(dy.data), dy.Shape())
		dx, dw, db, err := c.r.BatchNormGrad(c.ctx, dst.Tensor, dst.Tensor, x.Tensor, weight.tensor(), stats, cfg, want)
		require.True(c.t, !want.Input || dx == dst.Tensor)
		c.gave3("BatchNormGrad in place", n, x, dy, w, []int{channels}, want, []*tensor.Tensor{dx, dw, db}, err, tol)
		return
	}
	c.dirty()
	dx, dw, db, err := c.r.BatchNormGrad(c.ctx, nil, dy.Tensor, x.Tensor, weight.tensor(), stats, cfg, want)
	c.gave3("BatchNormGrad", n, x, dy, w, []int{channels}, want, []*tensor.Tensor{dx, dw, db}, err, tol)
	dy.unchanged("BatchNormGrad")
	x.unchanged("BatchNorm")
}

func (c *trial[T]) batches(n int64) *tensor.Tensor {
	t, err := c.r.Full(c.ctx, float64(n), tensor.Int64)
	require.NoError(c.t, err)
	return t
}

func positives[T kernel.Float](c *trial[T], n int) []T {
	data := make([]T, n)
	for i := range data {
		data[i] = T(c.rand.Float64() + 0.5)
	}
	return data
}
