package autograd

import "github.com/cistern-ml/cistern/tensor"

// Sum returns the sum of x over the given axes, which disappear from the shape; over all of them if none is
// given. Negative axes count from the end.
func (t *Tape) Sum(x *Variable, axes ...int) *Variable {
	if !t.begin("Sum", x) {
		return t.inert()
	}
	y, err := t.rt.Sum(t.ctx, x.value, axes...)
	return t.reduced("Sum", x, y, err, axes, 1)
}

// Mean returns the mean of x over the given axes, as Sum does.
func (t *Tape) Mean(x *Variable, axes ...int) *Variable {
	if !t.begin("Mean", x) {
		return t.inert()
	}
	y, err := t.rt.Mean(t.ctx, x.value, axes...)
	return t.reduced("Mean", x, y, err, axes, float64(y.Elements())/float64(x.value.Elements()))
}

func (t *Tape) reduced(op string, x *Variable, y *tensor.Tensor, err error, axes []int, scale float64) *Variable {
	return t.push(op, t.result(op, y, err), []*Variable{x}, nil, func(_ *node, g *tensor.Tensor) {
		shape := x.value.Shape()
		kept := shape.Clone()
		for i := range kept {
			if len(axes) == 0 {
				kept[i] = 1
			}
		}
		for _, a := range axes {
			if a < 0 {
				a += len(kept)
			}
			kept[a] = 1
		}
		var err error
		if scale != 1 && x.value.Elements() > 0 {
			if g, err = t.scaled(g, scale); err != nil {
				t.fail(op+" backward", err)
				return
			}
		}
		row, err := t.rt.Reshape(t.ctx, g, kept...)
		t.free(g)
		if err != nil {
			t.fail(op+" backward", err)
			return
		}
		d, err := t.rt.BroadcastTo(t.ctx, row, shape...)
		t.free(row)
		t.give(op, x, d, err)
	})
}

// Softmax returns the softmax of x along its last dimension.
func (t *Tape) Softmax(x *Variable) *Variable {
	if !t.begin("Softmax", x) {
		return t.inert()
	}
	y, err := t.rt.Softmax(t.ctx, x.value)
	out := t.result("Softmax", y, err)
	return t.push("Softmax", out, []*Variable{x}, []*Variable{out}, func(n *node, g *tensor.Tensor) {
		d, err := t.rt.SoftmaxGrad(t.ctx, g, out.value)
		n.done(out)
		t.free(g)
		t.give("Softmax", x, d, err)
	})
}

// CrossEntropy returns the mean softmax cross entropy of logits (n, classes) and labels (n), int32
// (torch.nn.functional.cross_entropy). The backward pass keeps the logits, computes their softmax again, and
// puts the gradient in their memory if nobody else reads them.
// A label outside [0, classes) is an error of the next read, which wraps [tensor.ErrLabel]; the gradients of
// its row are 0. labels is shared like an [Tape.Input].
func (t *Tape) CrossEntropy(logits *Variable, labels *tensor.Tensor) *Variable {
	if !t.begin("CrossEntropy", logits) {
		return t.inert()
	}
	loss, err := t.rt.CrossEntropy(t.ctx, logits.value, labels)
	out := t.result("CrossEntropy", loss, err)
	if !t.record {
		t.spend("CrossEntropy", []*Variable{logits})
		return out
	}
	if !logits.needsGrad {
		return out
	}
	classes := t.Input(labels)
	t.push("CrossEntropy", out, []*Variable{logits}, []*Variable{logits, classes}, func(n *node, g *tensor.Tensor) {
		var dst *tensor.Tensor
		var err error
		if logits.owned && logits.users == 1 && logits.value.Exclusive() {
			dst, err = t.rt.Share(t.ctx, logits.value) // nobody reads it again: the gradient takes its memory
		}
		d := dst
		if err == nil {
			d, err = t.rt.CrossEntropyGrad(t.ctx, dst, logits.value, classes.value, g)
		}
		n.done(logits)
		n.done(classes)
		t.free(g)
		t.give("CrossEntropy", logits, d, err)
	})
	classes.Release()
	return out
}
