package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// CrossEntropy returns the mean softmax cross entropy of logits (n, classes) and labels (n), int32
// or int64 (torch.nn.functional.cross_entropy). logits may have more dimensions (n, classes, d1,
// …): then labels is (n, d1, …). Options are [tensor.ReduceSum], [tensor.ReduceNone],
// [tensor.IgnoreIndex], [tensor.LabelSmoothing] and [tensor.Weight]. labels in the shape and dtype
// of the logits are probabilities of the classes. For bfloat16 logits they may be float32; the
// logits are then upcast.
//
// The backward pass keeps the logits, computes their softmax again, and writes the gradient into
// their memory if it is their last reader. If the gradient comes with the loss
// ([tensor.Gradients.CrossEntropyWithGrad]), the backward pass keeps that instead; if sums of the
// rows come with it, the backward pass keeps these as well. Rows with the label -100, or with that
// of IgnoreIndex, don't count. Any other label outside [0, classes) makes the next read fail with
// an error that wraps [tensor.ErrLabel]; the gradients of its row are 0. labels and weights are
// shared like a [Tape.Input].
func (t *Tape) CrossEntropy(logits *Variable, labels Target, options ...tensor.LossOption) *Variable {
	if !t.begin("CrossEntropy", logits) {
		return t.inert()
	}
	y, ok := labels.(*tensor.Tensor) // known gradients need no variable of it
	if !ok {
		v, _ := t.target("CrossEntropy", labels)
		if !t.begin("CrossEntropy", v) {
			return t.inert()
		}
		y = v.value
	}
	c := tensor.NewLossConfig(options...)
	t.bring(c.Weight)
	if y != nil && y.Rank() > 0 && (y.Dtype() == logits.value.Dtype() || y.Dtype() == logits.value.Dtype().Computes()) {
		return t.softEntropy(logits, labels, c)
	}
	if logits.needsGrad {
		loss, grad, sums, err := t.rt.CrossEntropyWithGrad(t.ctx, logits.value, y, options...)
		if err != nil || grad != nil {
			return opKnownEntropy.Apply(t, knownEntropy{loss, grad, err}, logits)
		}
		labelled, own := t.target("CrossEntropy", labels)
		if own {
			defer labelled.Release()
		}
		var weights *Variable
		if c.Weight != nil {
			weights = t.share("CrossEntropy", c.Weight)
		}
		var room [3]*Variable
		defer weights.Release()
		return opCrossEntropy.Apply(t, crossEntropy{loss: loss, sums: sums, cfg: c, plain: len(options) == 0 && sums == nil}, withOptional(append(room[:0], logits), labelled, weights)...)
	}
	loss, err := t.rt.CrossEntropy(t.ctx, logits.value, y, options...)
	return opKnownEntropy.Apply(t, knownEntropy{loss, nil, err}, logits)
}

// knownEntropy is a cross entropy that was computed together with its gradient, if one is needed.
type knownEntropy struct {
	loss, grad *tensor.Tensor
	err        error
}

var opKnownEntropy = newOp[knownEntropy]("CrossEntropy")

func (e *knownEntropy) Forward(c *Call) (*tensor.Tensor, error) {
	if e.grad != nil {
		c.Save(e.grad)
	}
	return e.loss, e.err
}

// Backward gives the logits the known gradient times the loss's own, which is 1 where Backward
// begins.
func (e *knownEntropy) Backward(c *Call, g *tensor.Tensor) (err error) {
	var d *tensor.Tensor
	if c.out == c.tape.root {
		d, err = c.Runtime().Share(c.Context(), e.grad)
	} else {
		d, err = c.Runtime().Mul(c.Context(), e.grad, g)
	}
	c.doneOwn()
	return c.GiveReplacing(0, g, d, err)
}

func (e *knownEntropy) seedless() bool { return true }

func (*knownEntropy) borrows() {}

// crossEntropy is one of logits, labels and, if there are any, weights.
type crossEntropy struct {
	loss, sums *tensor.Tensor // sums may be nil
	cfg        tensor.LossConfig
	plain      bool // there are no options and no sums
}

var opCrossEntropy = newOp[crossEntropy]("CrossEntropy")

func (e *crossEntropy) Forward(c *Call) (*tensor.Tensor, error) {
	for i := range c.Inputs() {
		c.Save(c.Input(i))
	}
	if e.sums != nil {
		c.Save(e.sums)
	}
	return e.loss, nil
}

// Backward computes the softmax again, in the memory of the logits if this is their last reader.
func (e *crossEntropy) Backward(c *Call, g *tensor.Tensor) (err error) {
	var dst *tensor.Tensor
	logits := c.inputs[0]
	if logits.owned && logits.holds == 1 && logits.value.Exclusive() {
		if dst, err = c.Runtime().Share(c.Context(), logits.value); err != nil {
			return err
		}
	}
	var d *tensor.Tensor
	if e.plain {
		d, err = c.Runtime().CrossEntropyGrad(c.Context(), dst, logits.value, c.Input(1), g)
	} else {
		if e.cfg.Weight != nil {
			e.cfg.Weight = c.Input(2) // the caller may have released its own
		}
		e.cfg.RowSums = e.sums
		d, err = c.Runtime().CrossEntropyGrad(c.Context(), dst, logits.value, c.Input(1), g, e.cfg.Option())
	}
	for i := range c.Inputs() {
		c.Done(i)
	}
	return c.GiveReplacing(0, g, d, err)
}

// softEntropy returns the cross entropy of probabilities of the classes: -Σ p·log softmax, with
// weights for each class. A mean divides it by the number of rows.
func (t *Tape) softEntropy(logits *Variable, p Target, c tensor.LossConfig) *Variable {
	if err := c.Check("CrossEntropy", "IgnoreIndex", "LabelSmoothing", "Weight"); err != nil {
		t.fail("CrossEntropy", err)
		return t.inert()
	}
	shape := logits.Shape()
	if !slices.Equal(p.Shape(), shape) {
		t.fail("CrossEntropy", fmt.Errorf("%w: logits are %v and probabilities %v: want one shape", tensor.ErrShape, shape, p.Shape()))
		return t.inert()
	}
	axis := min(1, len(shape)-1)
	if w := c.Weight; w != nil && !slices.Equal(w.Shape(), shape[axis:axis+1]) {
		t.fail("CrossEntropy", fmt.Errorf("%w: the weights are %v and the logits %v: want a weight for each class", tensor.ErrShape, w.Shape(), shape))
		return t.inert()
	}
	rows := 1
	for i, d := range shape {
		if i != axis {
			rows *= d
		}
	}
	wide := logits.value.Dtype().Computes()
	return t.Frame(func() *Variable {
		p, _ := t.target("CrossEntropy", p)
		logits, q := t.Cast(logits, wide), t.Cast(p, wide)
		if c.LabelSmoothing != 0 {
			q = t.AddScalar(t.MulScalar(q, 1-c.LabelSmoothing), c.LabelSmoothing/float64(shape[axis]))
		}
		if c.Weight != nil {
			behind := make([]int, len(shape)-axis)
			for i := range behind {
				behind[i] = 1
			}
			behind[0] = -1
			q = t.Mul(q, t.Reshape(t.share("CrossEntropy", c.Weight), behind...))
		}
		losses := t.Neg(t.Sum(t.Mul(q, t.LogSoftmax(logits, axis)), axis))
		switch c.Reduction {
		case tensor.NoReduction:
			return losses
		case tensor.SumReduction:
			return t.Sum(losses)
		}
		return t.MulScalar(t.Sum(losses), 1/float64(rows))
	})
}
