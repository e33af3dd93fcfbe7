package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// NLLLoss returns the mean over the rows of x (n, classes) of -row[label], a scalar
// (torch.nn.functional.nll_loss). x is logarithms of probabilities. Shapes, dtypes, labels and
// their errors are those of [Layers.CrossEntropy], which computes the logarithm of the softmax
// itself. Options are [ReduceSum], [ReduceNone], [IgnoreIndex] and [Weight].
func (l Layers) NLLLoss(ctx context.Context, x, labels *Tensor, options ...LossOption) (*Tensor, error) {
	loss, _, _, err := l.rt.classLoss(ctx, "NLLLoss", backend.NLLLoss, x, labels, false, options)
	return loss, err
}

// NLLLossGrad returns the gradient of x in [Layers.NLLLoss] with the same options. dloss is the
// gradient of the loss, in its shape. The result is 0 except for the element of each label that
// counts. No element of x is read.
func (d Gradients) NLLLossGrad(ctx context.Context, x, labels, dloss *Tensor, options ...LossOption) (*Tensor, error) {
	rt, op := d.rt, "NLLLossGrad"
	c := NewLossConfig(options...)
	in, e, err := rt.acquireClassGrad(op, false, x, labels, dloss, &c)
	if err != nil {
		return nil, err
	}
	defer in.release()
	return rt.result(ctx, op, x.dtype, x.shape, func(out *Tensor) error {
		call := rt.call(backend.NLLLossGrad, out, labels, c.Weight, dloss)
		backend.SetParams(call, e)
		return rt.backend.Do(ctx, call)
	})
}
