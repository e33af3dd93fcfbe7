package backendtest

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func lossOps[T kernel.Float]() []operation[T] {
	return []operation[T]{{"pair loss", pairLossTrial[T]}, {"pair loss", pairLossTrial[T]}, {"cross entropy with options", entropyTrial[T]},
		{"cross entropy with options", entropyTrial[T]}}
}

type (
	pairLoss     = func(ctx context.Context, x, t *tensor.Tensor, options ...tensor.LossOption) (*tensor.Tensor, error)
	pairGradient = func(ctx context.Context, of tensor.LossTarget, dloss, x, t *tensor.Tensor, options ...tensor.LossOption) (*tensor.Tensor, error)
)

func pairLossTrial[T kernel.Float](c *trial[T]) {
	shape := c.few()
	x, t := c.operand(shape...), c.operand(shape...)
	delta := []float64{1, 0.25, 3}[c.rand.IntN(3)]
	var options []tensor.LossOption
	weight, pos := ones(len(x.data)), ones(len(x.data))
	var name string
	var run pairLoss
	var grad pairGradient
	of := func(int) reference.Loss { return reference.MSE() }
	switch c.rand.IntN(5) {
	case 0:
		name, run, grad = "MSELoss", c.r.MSELoss, c.r.MSELossGrad
	case 1:
		name, run, grad = "L1Loss", c.r.L1Loss, c.r.L1LossGrad
		of = func(int) reference.Loss { return reference.L1() }
	case 2:
		name = "HuberLoss"
		run = func(ctx context.Context, x, t *tensor.Tensor, o ...tensor.LossOption) (*tensor.Tensor, error) {
			return c.r.HuberLoss(ctx, x, t, delta, o...)
		}
		grad = func(ctx context.Context, of tensor.LossTarget, d, x, t *tensor.Tensor, o ...tensor.LossOption) (*tensor.Tensor, error) {
			return c.r.HuberLossGrad(ctx, of, d, x, t, delta, o...)
		}
		of = func(int) reference.Loss { return reference.Huber(delta) }
	default:
		name, run, grad = "BCEWithLogits", c.r.BCEWithLogits, c.r.BCEWithLogitsGrad
		if c.rand.IntN(2) == 0 {
			options, weight = c.weights(shape, tensor.Weight, options)
		}
		positive := c.rand.IntN(2) == 0
		if positive {
			options, pos = c.weights(shape, tensor.PosWeight, options)
		}
		of = func(i int) reference.Loss { return reference.BCE(weight[i], pos[i], positive) }
	}
	want := reference.Result{Array: reference.Array{Shape: shape}}
	for i, v := range x.data {
		l := of(i)
		want.Data = append(want.Data, l.F(float64(v), float64(t.data[i])))
		size := l.Size(float64(v), float64(t.data[i]))
		want.Size = append(want.Size, size*size+size)
	}
	reduction, divisor := c.rand.IntN(3), 1.0
	options = append(options, []tensor.LossOption{tensor.ReduceMean, tensor.ReduceSum, tensor.ReduceNone}[reduction])
	tol := inDouble[T](16)
	tol.terms, tol.inside = rowSum[T](len(x.data)).terms, 8*float64(len(x.data)+1)
	if reduction == 0 {
		divisor = float64(len(x.data))
	}
	dloss := c.wide().operand()
	if reduction == 2 {
		dloss = c.wide().operand(shape...)
	} else {
		want = reference.SumTo(want.Array, nil, divisor)
		want.Size = []float64{0}
		for i, v := range x.data {
			size := of(i).Size(float64(v), float64(t.data[i]))
			want.Size[0] += (size*size + size) / divisor
		}
	}
	c.dirty()
	y, err := run(c.ctx, x.Tensor, t.Tensor, options...)
	c.gave(name, y, err, want, tol)
	for _, target := range []tensor.LossTarget{tensor.OfInput, tensor.OfTarget} {
		want := reference.Result{Array: reference.Array{Shape: shape}}
		for i, v := range x.data {
			l, d := of(i), float64(dloss.data[min(i, len(dloss.data)-1)])/divisor
			slope := l.X
			if target == tensor.OfTarget {
				slope = l.T
			}
			gradient := d * slope(float64(v), float64(t.data[i]))
			size := math.Abs(d) * l.Size(float64(v), float64(t.data[i]))
			switch {
			case finite(size):
			case finite(gradient): // what is infinite is in none of its terms
				size = math.Abs(d) * l.Size(finiteOr0(v), finiteOr0(t.data[i]))
			default: // infinities of terms may meet
				size = math.Inf(1)
			}
			want.Data, want.Size = append(want.Data, gradient), append(want.Size, size)
		}
		c.dirty()
		y, err := grad(c.ctx, target, dloss.Tensor, x.Tensor, t.Tensor, options...)
		c.gave(name+" gradient", y, err, want, tol)
	}
	x.unchanged(name)
	t.unchanged(name)
}

// finiteOr0 is v, or 0 in place of what is not finite.
func finiteOr0[T kernel.Float](v T) float64 {
	if finite(float64(v)) {
		return float64(v)
	}
	return 0
}

func ones(n int) []float64 { return slices.Repeat([]float64{1}, n) }

// weights are some that broadcast to the shape, and what they are there.
func (c *trial[T]) weights(shape []int, option func(*tensor.Tensor) tensor.LossOption, options []tensor.LossOption) ([]tensor.LossOption, []float64) {
	kind := c.kind
	c.kind = positive
	w := c.operand(c.narrowed(shape)...)
	c.kind = kind
	return append(options, option(w.Tensor)), reference.BroadcastTo(w.array(), shape).Data
}

func entropyTrial[T kernel.Float](c *trial[T]) {
	e := reference.Entropy{Ignore: -100}
	var options []tensor.LossOption
	shape := append([]int{c.rand.IntN(6), 1 + c.rand.IntN(7)}, [][]int{{}, {3}, {2, 4}, {1, 1, 2}, {0}}[c.rand.IntN(5)]...)
	if c.rand.IntN(20) == 0 {
		shape[1], shape[0] = 300, 1+c.rand.IntN(3)
	}
	if c.rand.IntN(30) == 0 {
		shape = []int{1200, 3} // more rows than one block of a GPU does
	}
	at, per := 1, slices.Concat(shape[:1], shape[2:])
	if c.rand.IntN(10) == 0 {
		shape, at, per = shape[1:2], 0, []int{}
	}
	logits := c.operand(shape...)
	classes := shape[at]
	if c.rand.IntN(2) == 0 {
		e.Ignore = int64(c.rand.IntN(classes+2) - 1)
		options = append(options, tensor.IgnoreIndex(int(e.Ignore)))
	}
	if c.rand.IntN(2) == 0 {
		e.Smoothing = c.rand.Float64()
		options = append(options, tensor.LabelSmoothing(e.Smoothing))
	}
	if c.rand.IntN(2) == 0 {
		kind := c.kind
		c.kind = positive
		w := c.wide().operand(classes)
		c.kind = kind
		options, e.Weights = append(options, tensor.Weight(w.Tensor)), w.array().Data
	}
	labels, bad := make([]int64, elements(per)), false
	for i := range labels {
		labels[i] = int64(c.rand.IntN(classes))
		switch c.rand.IntN(120) {
		case 0:
			labels[i] = []int64{-1, int64(classes), math.MinInt32, math.MaxInt32}[c.rand.IntN(4)]
		case 1, 2, 3, 4, 5, 6:
			labels[i] = e.Ignore
		}
		bad = bad || labels[i] != e.Ignore && (labels[i] < 0 || labels[i] >= int64(classes))
	}
	on := wholeNumbers(c, reference.Array{Shape: per, Data: floats(labels)}, func(v float64) int32 { return int32(v) })
	if c.rand.IntN(2) == 0 {
		on = wholeNumbers(c, reference.Array{Shape: per, Data: floats(labels)}, func(v float64) int64 { return int64(v) })
	}
	// The reference has rows one after the other.
	moved := logits.array()
	if at == 1 {
		moved = reference.MoveLast(moved, 1)
	}
	moved.Shape = []int{len(labels), classes}
	reduction := c.rand.IntN(3)
	options = append(options, []tensor.LossOption{tensor.ReduceMean, tensor.ReduceSum, tensor.ReduceNone}[reduction])
	e.Mean = reduction == 0
	each, want := e.Losses(moved, labels)
	dloss := c.wide().operandOf([]T{T(c.rand.Float64()*6 - 3)}, nil)
	if reduction == 2 {
		kind := c.kind
		c.kind = ordinary
		dloss = c.wide().operand(per...)
		c.kind = kind
		want = each
		want.Shape = per
	}
	tol := rowSum[T](len(logits.data))
	tol.inside = 8
	if reduction != 2 {
		tol.inside *= float64(len(labels) + 1) // the sum, and
		if e.Weights != nil {
			tol.inside *= max(1, slices.Max(e.Weights)) // its terms before they are divided
		}
	}
	c.dirty()
	loss, err := c.r.CrossEntropy(c.ctx, logits.Tensor, on, options...)
	require.NoError(c.t, err)
	if bad {
		require.ErrorIs(c.t, c.r.Synchronize(c.ctx), tensor.ErrLabel)
	} else {
		require.NoError(c.t, c.r.Synchronize(c.ctx))
	}
	c.gave("CrossEntropy with options", loss, err, want, tol)
	logits.unchanged("CrossEntropy")
	c.entropyWithGrad(logits, on, loss, bad, options)
	grad := e.Grad(moved, labels, dloss.array().Data, reduction == 2)
	if at == 1 {
		grad.Shape = append(slices.Clone(per), classes)
		grad = reference.Result{Array: reference.MoveFrom(grad.Array, 1), Size: reference.MoveFrom(reference.Array{Shape: grad.Shape, Data: grad.Size}, 1).Data}
	} else {
		grad.Shape = shape
	}
	dst := c.destination(logits, nil)
	c.dirty()
	out, err := c.r.CrossEntropyGrad(c.ctx, dst.tensor(), logits.Tensor, on, dloss.Tensor, options...)
	c.went("CrossEntropyGrad with options", dst, out, err, grad, tol, logits, dloss)
}

func floats(all []int64) []float64 {
	out := make([]float64, len(all))
	for i, v := range all {
		out[i] = float64(v)
	}
	return out
}

// entropyWithGrad compares CrossEntropyWithGrad with CrossEntropy and CrossEntropyGrad, to the bit,
// where the device does both at once.
func (c *trial[T]) entropyWithGrad(logits *operand[T], labels, loss *tensor.Tensor, bad bool, options []tensor.LossOption) {
	c.t.Helper()
	again, grad, err := c.r.CrossEntropyWithGrad(c.ctx, logits.Tensor, labels, options...)
	require.NoError(c.t, err)
	if bad {
		require.ErrorIs(c.t, c.r.Synchronize(c.ctx), tensor.ErrLabel)
	}
	require.Equal(c.t, fmt.Sprint(c.elements(loss)), fmt.Sprint(c.elements(again)))
	if grad == nil {
		return
	}
	one, err := c.r.Full(c.ctx, 1, loss.Dtype())
	require.NoError(c.t, err)
	want, err := c.r.CrossEntropyGrad(c.ctx, nil, logits.Tensor, labels, one, options...)
	require.NoError(c.t, err)
	require.Equal(c.t, fmt.Sprint(c.elements(want)), fmt.Sprint(c.elements(grad)))
}
