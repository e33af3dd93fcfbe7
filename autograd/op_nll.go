package autograd

import "github.com/cistern-ml/cistern/tensor"

// NLLLoss returns the mean negative log likelihood of labels (n), int32 or int64, where x (n,
// classes) has the logarithms of the probabilities, such as of LogSoftmax
// (torch.nn.functional.nll_loss). x may have more dimensions (n, classes, d1, …): then labels is
// (n, d1, …). Options are [tensor.ReduceSum], [tensor.ReduceNone], [tensor.IgnoreIndex] and
// [tensor.Weight]. Labels are treated as in CrossEntropy. labels and weights are shared like a
// [Tape.Input].
func (t *Tape) NLLLoss(x *Variable, labels Target, options ...tensor.LossOption) *Variable {
	if !t.begin("NLLLoss", x) {
		return t.inert()
	}
	labelled, own := t.target("NLLLoss", labels)
	if own {
		defer labelled.Release()
	}
	cfg, weights := tensor.NewLossConfig(options...), (*Variable)(nil)
	if cfg.Weight != nil {
		weights = t.share("NLLLoss", cfg.Weight)
	}
	var room [3]*Variable
	defer weights.Release()
	return opNLL.Apply(t, likelihood{cfg}, withOptional(append(room[:0], x), labelled, weights)...)
}

// likelihood is one of x, labels and, if there are any, weights.
type likelihood struct{ cfg tensor.LossConfig }

var opNLL = newOp[likelihood]("NLLLoss")

func (*likelihood) borrows() {}

// Forward saves x for its shape.
func (l *likelihood) Forward(c *Call) (*tensor.Tensor, error) {
	for i := range c.Inputs() {
		c.Save(c.Input(i))
	}
	return c.Runtime().NLLLoss(c.Context(), c.Input(0), c.Input(1), l.options(c))
}

func (l *likelihood) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().NLLLossGrad(c.Context(), c.Input(0), c.Input(1), g, l.options(c))
	return c.GiveReplacing(0, g, d, err)
}

// options returns the options with the call's weights, because the caller may have released its
// own.
func (l *likelihood) options(c *Call) tensor.LossOption {
	l.cfg.Weight = c.Input(2)
	return l.cfg.Option()
}
