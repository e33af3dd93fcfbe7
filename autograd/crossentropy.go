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
// of the logits are probabilities of the classes; those of bfloat16 logits may be float32, and the
// logits are cast to it.
//
// The backward pass keeps the logits, computes their softmax again, and puts the gradient in their
// memory if nobody else reads them; where the gradient comes with the loss
// ([tensor.Gradients.CrossEntropyWithGrad]) it keeps that instead. Rows with the label -100, or
// another one that IgnoreIndex names, don't count. Another label outside [0, classes) is an error
// of the next read, which wraps [tensor.ErrLabel]; the gradients of its row are 0. labels and
// weights are shared like an [Tape.Input].
func (t *Tape) CrossEntropy(logits *Variable, labels *tensor.Tensor, options ...tensor.LossOption) *Variable {
	if !t.begin("CrossEntropy", logits) {
		return t.inert()
	}
	c := tensor.NewLossConfig(options...)
	t.bring(c.Weight)
	if labels != nil && labels.Rank() > 0 && (labels.Dtype() == logits.value.Dtype() || labels.Dtype() == logits.value.Dtype().Computes()) {
		return t.softEntropy(logits, labels, c)
	}
	var loss, grad *tensor.Tensor
	var err error
	if t.record && logits.needsGrad {
		loss, grad, err = t.rt.CrossEntropyWithGrad(t.ctx, logits.value, labels, options...)
	} else {
		loss, err = t.rt.CrossEntropy(t.ctx, logits.value, labels, options...)
	}
	out := t.result("CrossEntropy", loss, err)
	if !t.record {
		t.spend("CrossEntropy", []*Variable{logits})
		return out
	}
	if !logits.needsGrad || t.err != nil {
		return out
	}
	if grad != nil {
		known := t.result("CrossEntropy", grad, nil)
		t.push("CrossEntropy", out, []*Variable{logits}, []*Variable{known}, knownEntropyBackward)
		if k := len(t.nodes) - 1; t.err == nil {
			t.nodes[k].seedless = true
		}
		known.Release()
		return out
	}
	reads := append(make([]*Variable, 0, 3), logits, t.share("CrossEntropy", labels))
	if c.Weight != nil {
		reads = append(reads, t.share("CrossEntropy", c.Weight))
	}
	back := crossEntropyBackward
	if len(options) > 0 {
		back = crossEntropyOptions(c)
	}
	t.push("CrossEntropy", out, []*Variable{logits}, reads, back)
	for _, v := range reads[1:] {
		v.Release()
	}
	return out
}

// crossEntropyOptions is crossEntropyBackward with options.
func crossEntropyOptions(c tensor.LossConfig) func(n *Node, g *tensor.Tensor) {
	return func(n *Node, g *tensor.Tensor) {
		if c.Weight != nil {
			c.Weight = n.saved[2].value // the caller may have released its own
		}
		crossEntropyGrad(n, g, c.Option())
	}
}

func crossEntropyBackward(n *Node, g *tensor.Tensor) { crossEntropyGrad(n, g) }

// crossEntropyGrad gives the gradient to the logits. Saved are they, the labels and the weights, if there are any.
func crossEntropyGrad(n *Node, g *tensor.Tensor, options ...tensor.LossOption) {
	t, logits := n.out.tape, n.in[0]
	var dst *tensor.Tensor
	var err error
	if logits.owned && logits.users == 1 && logits.value.Exclusive() {
		dst, err = t.rt.Share(t.ctx, logits.value) // nobody reads it again: the gradient takes its memory
	}
	d := dst
	if err == nil {
		d, err = t.rt.CrossEntropyGrad(t.ctx, dst, logits.value, n.saved[1].value, g, options...)
	}
	for len(n.saved) > 0 {
		n.done(n.saved[0].Variable)
	}
	t.free(g)
	t.give("CrossEntropy", logits, d, err)
}

// knownEntropyBackward gives the logits the gradient that came with the loss, times the loss's own, which is 1 where Backward begins.
func knownEntropyBackward(n *Node, g *tensor.Tensor) {
	t, known := n.out.tape, n.saved[0]
	var d *tensor.Tensor
	var err error
	if n.out == t.root {
		d, err = t.rt.Share(t.ctx, known.value)
	} else {
		d, err = t.rt.Mul(t.ctx, known.value, g)
	}
	n.done(known.Variable)
	t.free(g)
	t.give("CrossEntropy", n.in[0], d, err)
}

// softEntropy is the cross entropy of probabilities of the classes: -Σ p·log softmax, with weights for each class, and over
// the number of rows for a mean.
func (t *Tape) softEntropy(logits *Variable, p *tensor.Tensor, c tensor.LossConfig) *Variable {
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
		logits, q := t.Cast(logits, wide), t.Cast(t.share("CrossEntropy", p), wide)
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
