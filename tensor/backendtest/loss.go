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
		{"cross entropy with options", entropyTrial[T]}, {"NLLLoss", likelihoodTrial[T]}, {"KLDivLoss", divergenceTrial[T]}}
}

type (
	pairLoss     = func(ctx context.Context, x, t *tensor.Tensor, options ...tensor.LossOption) (*tensor.Tensor, error)
	pairGradient = func(ctx context.Context, of tensor.LossTarget, dloss, x, t *tensor.Tensor, options ...tensor.LossOption) (*tensor.Tensor, error)
)

func pairLossTrial[T kernel.Float](c *trial[T]) { c.pairLoss(c.rand.IntN(5)) }

func divergenceTrial[T kernel.Float](c *trial[T]) { c.pairLoss(5 + c.rand.IntN(2)) }

// pairLoss runs a trial of one of the losses.
func (c *trial[T]) pairLoss(which int) {
	shape := c.few()
	x, t := c.operand(shape...), c.operand(shape...)
	delta := []float64{1, 0.25, 3}[c.rand.IntN(3)]
	var options []tensor.LossOption
	weight, pos := ones(len(x.data)), ones(len(x.data))
	var name string
	var run pairLoss
	var grad pairGradient
	of := func(int) reference.Loss { return reference.MSE() }
	switch which {
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
	case 5:
		name, run, grad = "KLDivLoss", c.r.KLDivLoss, c.r.KLDivLossGrad
		of = func(int) reference.Loss { return reference.KL(false) }
	case 6:
		name, run, grad = "KLDivLoss", c.r.KLDivLoss, c.r.KLDivLossGrad
		options = append(options, tensor.LogTarget)
		of = func(int) reference.Loss { return reference.KL(true) }
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
	if name == "KLDivLoss" && reduction == 1 && len(shape) > 0 {
		options, divisor = append(options, tensor.ReduceBatchMean), float64(shape[0])
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
			case finite(gradient): // no term has this infinity
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

// finiteOr0 returns v, or 0 if v is not finite.
func finiteOr0[T kernel.Float](v T) float64 {
	if finite(float64(v)) {
		return float64(v)
	}
	return 0
}

func ones(n int) []float64 { return slices.Repeat([]float64{1}, n) }

// weights returns the option for weights that broadcast to the shape, and these weights in the
// shape.
func (c *trial[T]) weights(shape []int, option func(*tensor.Tensor) tensor.LossOption, options []tensor.LossOption) ([]tensor.LossOption, []float64) {
	kind := c.kind
	c.kind = positive
	w := c.operand(c.narrowed(shape)...)
	c.kind = kind
	return append(options, option(w.Tensor)), reference.BroadcastTo(w.array(), shape).Data
}

// classCase is a loss of rows with one label each.
type classCase[T kernel.Float] struct {
	e       reference.Entropy
	options []tensor.LossOption
	x       *operand[T]
	rows    reference.Array // of x, one row after the other
	labels  []int64
	on      *tensor.Tensor // the labels
	bad     bool           // a label is out of range
	each    bool
	dloss   *operand[T]
	per     []int // the shape of the labels
	vector  bool  // x is one row
}

func (c *trial[T]) classCase() *classCase[T] {
	k := &classCase[T]{e: reference.Entropy{Ignore: -100}}
	shape := append([]int{c.rand.IntN(6), 1 + c.rand.IntN(7)}, [][]int{{}, {3}, {2, 4}, {1, 1, 2}, {0}}[c.rand.IntN(5)]...)
	if c.rand.IntN(20) == 0 {
		shape[1], shape[0] = []int{300, 1100, 2700}[c.rand.IntN(3)], 1+c.rand.IntN(3)
	}
	if c.rand.IntN(30) == 0 {
		shape = []int{1200, 3} // more rows than one block of a GPU takes
	}
	at := 1
	k.per = slices.Concat(shape[:1], shape[2:])
	if c.rand.IntN(10) == 0 {
		shape, at, k.per, k.vector = shape[1:2], 0, []int{}, true
	}
	k.x = c.operand(shape...)
	classes := shape[at]
	if c.rand.IntN(2) == 0 {
		k.e.Ignore = int64(c.rand.IntN(classes+2) - 1)
		k.options = append(k.options, tensor.IgnoreIndex(int(k.e.Ignore)))
	}
	kind := c.kind
	if c.rand.IntN(2) == 0 {
		c.kind = positive
		w := c.wide().operand(classes)
		k.options, k.e.Weights = append(k.options, tensor.Weight(w.Tensor)), w.array().Data
	}
	k.labels = make([]int64, elements(k.per))
	for i := range k.labels {
		k.labels[i] = int64(c.rand.IntN(classes))
		switch c.rand.IntN(120) {
		case 0:
			k.labels[i] = []int64{-1, int64(classes), math.MinInt32, math.MaxInt32}[c.rand.IntN(4)]
		case 1, 2, 3, 4, 5, 6:
			k.labels[i] = k.e.Ignore
		}
		k.bad = k.bad || k.labels[i] != k.e.Ignore && (k.labels[i] < 0 || k.labels[i] >= int64(classes))
	}
	k.on = wholeNumbers(c, reference.Array{Shape: k.per, Data: floats(k.labels)}, func(v float64) int32 { return int32(v) })
	if c.rand.IntN(2) == 0 {
		k.on = wholeNumbers(c, reference.Array{Shape: k.per, Data: floats(k.labels)}, func(v float64) int64 { return int64(v) })
	}
	if k.rows = k.x.array(); !k.vector {
		k.rows = reference.MoveLast(k.rows, 1)
	}
	k.rows.Shape = []int{len(k.labels), classes}
	reduction := c.rand.IntN(3)
	k.options = append(k.options, []tensor.LossOption{tensor.ReduceMean, tensor.ReduceSum, tensor.ReduceNone}[reduction])
	k.e.Mean, k.each = reduction == 0, reduction == 2
	c.kind = ordinary
	k.dloss = c.wide().operandOf([]T{T(c.rand.Float64()*6 - 3)}, nil)
	if k.each {
		k.dloss = c.wide().operand(k.per...)
	}
	c.kind = kind
	return k
}

// synchronized checks that a wrong label was reported.
func (k *classCase[T]) synchronized(c *trial[T]) {
	c.t.Helper()
	if k.bad {
		require.ErrorIs(c.t, c.r.Synchronize(c.ctx), tensor.ErrLabel)
	} else {
		require.NoError(c.t, c.r.Synchronize(c.ctx))
	}
}

// wants returns the loss of each row, or of all.
func (k *classCase[T]) wants(each, all reference.Result) reference.Result {
	if each.Shape = k.per; k.each {
		return each
	}
	return all
}

// gradient returns the gradient of the rows, in the shape of x.
func (k *classCase[T]) gradient(rows reference.Result) reference.Result {
	if k.vector {
		rows.Shape = k.x.Shape()
		return rows
	}
	rows.Shape = append(slices.Clone(k.per), k.rows.Shape[1])
	return reference.Result{Array: reference.MoveFrom(rows.Array, 1), Size: reference.MoveFrom(reference.Array{Shape: rows.Shape, Data: rows.Size}, 1).Data}
}

func entropyTrial[T kernel.Float](c *trial[T]) {
	k := c.classCase()
	if c.rand.IntN(2) == 0 {
		k.e.Smoothing = c.rand.Float64()
		k.options = append(k.options, tensor.LabelSmoothing(k.e.Smoothing))
	}
	tol := rowSum[T](len(k.x.data))
	tol.inside = 8
	if !k.each {
		tol.inside *= float64(len(k.labels) + 1) // the sum, and
		if k.e.Weights != nil {
			tol.inside *= max(1, slices.Max(k.e.Weights)) // its terms before they are divided
		}
	}
	c.dirty()
	loss, err := c.r.CrossEntropy(c.ctx, k.x.Tensor, k.on, k.options...)
	require.NoError(c.t, err)
	k.synchronized(c)
	c.gave("CrossEntropy with options", loss, err, k.wants(k.e.Losses(k.rows, k.labels)), tol)
	k.x.unchanged("CrossEntropy")
	cfg := tensor.NewLossConfig(k.options...)
	cfg.RowSums = c.entropyWithGrad(k.x, k.on, loss, k.bad, k.options)
	grad := k.gradient(k.e.Grad(k.rows, k.labels, k.dloss.array().Data, k.each))
	if cfg.RowSums != nil {
		c.dirty()
		out, err := c.r.CrossEntropyGrad(c.ctx, nil, k.x.Tensor, k.on, k.dloss.Tensor, cfg.Option())
		c.gave("CrossEntropyGrad with sums", out, err, grad, tol)
	}
	dst := c.destination(k.x, nil)
	c.dirty()
	out, err := c.r.CrossEntropyGrad(c.ctx, dst.tensor(), k.x.Tensor, k.on, k.dloss.Tensor, k.options...)
	c.went("CrossEntropyGrad with options", dst, out, err, grad, tol, k.x, k.dloss)
}

func likelihoodTrial[T kernel.Float](c *trial[T]) {
	k := c.classCase()
	tol := rowSum[T](len(k.labels))
	if !k.each {
		tol.inside, tol.vague = float64(len(k.labels)+1), true
	}
	c.dirty()
	loss, err := c.r.NLLLoss(c.ctx, k.x.Tensor, k.on, k.options...)
	require.NoError(c.t, err)
	k.synchronized(c)
	c.gave("NLLLoss", loss, err, k.wants(k.e.Likelihoods(k.rows, k.labels)), tol)
	c.dirty()
	grad, err := c.r.NLLLossGrad(c.ctx, k.x.Tensor, k.on, k.dloss.Tensor, k.options...)
	c.gave("NLLLossGrad", grad, err, k.gradient(k.e.LikelihoodGrad(k.rows.Shape, k.labels, k.dloss.array().Data, k.each)), rowSum[T](len(k.labels)))
	k.x.unchanged("NLLLoss")
	_, err = c.r.NLLLoss(c.ctx, k.x.Tensor, k.on, tensor.LabelSmoothing(0.1))
	require.ErrorIs(c.t, err, tensor.ErrInvalid)
}

func floats(all []int64) []float64 {
	out := make([]float64, len(all))
	for i, v := range all {
		out[i] = float64(v)
	}
	return out
}

// entropyWithGrad checks that CrossEntropyWithGrad is bit-identical to CrossEntropy and
// CrossEntropyGrad, if the device computes both in one launch. It returns the rows' sums, if the
// device has computed these.
func (c *trial[T]) entropyWithGrad(logits *operand[T], labels, loss *tensor.Tensor, bad bool, options []tensor.LossOption) (sums *tensor.Tensor) {
	c.t.Helper()
	again, grad, sums, err := c.r.CrossEntropyWithGrad(c.ctx, logits.Tensor, labels, options...)
	require.NoError(c.t, err)
	if bad {
		require.ErrorIs(c.t, c.r.Synchronize(c.ctx), tensor.ErrLabel)
	}
	require.Equal(c.t, fmt.Sprint(c.elements(loss)), fmt.Sprint(c.elements(again)))
	if grad == nil {
		return sums
	}
	one, err := c.r.Full(c.ctx, 1, loss.Dtype())
	require.NoError(c.t, err)
	want, err := c.r.CrossEntropyGrad(c.ctx, nil, logits.Tensor, labels, one, options...)
	require.NoError(c.t, err)
	require.Equal(c.t, fmt.Sprint(c.elements(want)), fmt.Sprint(c.elements(grad)))
	return sums
}
