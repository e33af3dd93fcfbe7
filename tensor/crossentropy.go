package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// CrossEntropy returns the mean over the rows of logits (n, classes) of -log softmax(row)[label], a
// scalar (torch.nn.functional.cross_entropy). labels is (n), int32 or int64. If logits has more
// dimensions, (n, classes, d1, …), labels is (n, d1, …); for logits (classes) it is a scalar. For
// logits of 16 bits, the loss, its gradient and the weights are float32. Options are [ReduceSum],
// [ReduceNone], [IgnoreIndex], [LabelSmoothing] and [Weight]; with ReduceNone the result has the
// shape of labels.
//
// Rows with the label -100, or another label set by IgnoreIndex, don't count; the mean of no rows
// is NaN. Any other label outside [0, classes) makes the loss NaN, and the next read or Synchronize
// returns an error that wraps [ErrLabel].
func (l Layers) CrossEntropy(ctx context.Context, logits, labels *Tensor, options ...LossOption) (*Tensor, error) {
	loss, _, _, err := l.rt.classLoss(ctx, "CrossEntropy", backend.CrossEntropy, logits, labels, false, options)
	return loss, err
}

// CrossEntropyWithGrad returns [Layers.CrossEntropy] and, if the device computes both in one
// launch, the result of [Gradients.CrossEntropyGrad] for a dloss of 1, in new memory. GPUs compute
// both for a loss of one element, of up to 4,096 rows of up to 256 classes. Otherwise grad is nil,
// and GPUs return the sums of the rows' exponentials, 16 bytes a row, for [LossConfig].RowSums:
// with them CrossEntropyGrad reads the logits once. The caller releases all results.
func (d Gradients) CrossEntropyWithGrad(ctx context.Context, logits, labels *Tensor, options ...LossOption) (loss, grad, sums *Tensor, err error) {
	return d.rt.classLoss(ctx, "CrossEntropy", backend.CrossEntropy, logits, labels, true, options)
}

// classLoss computes CrossEntropy or NLLLoss: losses of rows with one label each.
func (rt *Runtime) classLoss(ctx context.Context, op string, kind backend.Op, logits, labels *Tensor, wantGrad bool, options []LossOption) (loss, grad, sums *Tensor, err error) {
	c := NewLossConfig(options...)
	in, e, err := rt.acquireClasses(op, kind == backend.CrossEntropy, logits, labels, &c)
	if err != nil {
		return nil, nil, nil, err
	}
	defer in.release()
	fault, err := rt.faultWord(ctx)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("tensor: %s: %w", op, err)
	}
	defer func() { rt.parked.add(fault.release(ctx)) }()
	var shape Shape
	if e.Each {
		shape = labels.shape
	}
	loss, err = rt.result(ctx, op, logits.dtype.Computes(), shape, func(loss *Tensor) (err error) {
		if wantGrad && !e.Each {
			if grad, err = rt.fusedEntropy(ctx, backend.CrossEntropyWithGrad, e, loss, logits, labels, c.Weight, fault); grad != nil || err != nil {
				return err
			}
		}
		if wantGrad {
			if sums, err = rt.fusedEntropy(ctx, backend.CrossEntropyWithSums, e, loss, logits, labels, c.Weight, fault); sums != nil || err != nil {
				return err
			}
		}
		call := rt.call(kind, loss, logits, labels, c.Weight)
		call.Dtype = logits.dtype
		call.Add(faultRef(fault))
		backend.SetParams(call, e)
		return rt.backend.Do(ctx, call)
	})
	rt.armFaults()
	return loss, grad, sums, err
}

// fusedEntropy sets the loss and returns the other result of op, the gradient of the logits or the
// rows' sums, if the device supports op. Otherwise it queues nothing and returns nil.
func (rt *Runtime) fusedEntropy(ctx context.Context, op backend.Op, e plan.Entropy, loss, logits, labels, weight *Tensor, fault *storage) (*Tensor, error) {
	call := rt.call(op, loss, logits, logits, labels, weight) // the logits stand for the other result
	call.Dtype = logits.dtype
	call.Add(faultRef(fault))
	backend.SetParams(call, e)
	if !rt.backend.Supports(call) {
		call.Free()
		return nil, nil
	}
	dtype, shape := logits.dtype, logits.shape
	if op == backend.CrossEntropyWithSums {
		dtype, shape = Float64, append(labels.shape[:len(labels.shape):len(labels.shape)], 2)
	}
	other, err := rt.alloc(ctx, "CrossEntropy", dtype, shape)
	if err != nil {
		call.Free()
		return nil, err
	}
	call.Args[1] = other.ref()
	return other.orRelease(rt.backend.Do(ctx, call))
}

// CrossEntropyGrad returns the gradient of the logits in [Layers.CrossEntropy] with the same
// options. For the mean it is (softmax(row) - onehot(label)) / n, times the scalar dloss; with
// [ReduceNone] dloss has the shape of labels. The gradient is written to dst, which may be the
// logits to work in place, or nil for a new tensor. Rows that don't count, and rows with a label
// outside [0, classes), get 0.
func (d Gradients) CrossEntropyGrad(ctx context.Context, dst, logits, labels, dloss *Tensor, options ...LossOption) (*Tensor, error) {
	rt := d.rt
	const op = "CrossEntropyGrad"
	c := NewLossConfig(options...)
	in, e, err := rt.acquireClassGrad(op, true, logits, labels, dloss, &c)
	if err != nil {
		return nil, err
	}
	defer in.release()
	var room [3]*Tensor
	return rt.into(ctx, op, &in, dst, logits, present(append(room[:0], labels, dloss), c.Weight), func(out *Tensor) error {
		if out.bytes == 0 {
			return nil
		}
		call := rt.call(backend.CrossEntropyGrad, out, logits, labels, c.Weight, dloss, c.RowSums)
		backend.SetParams(call, e)
		return rt.backend.Do(ctx, call)
	})
}

// acquireClassGrad is acquireClasses for the gradient of a loss.
func (rt *Runtime) acquireClassGrad(op string, smooths bool, logits, labels, dloss *Tensor, c *LossConfig) (in operands, e plan.Entropy, err error) {
	if in, e, err = rt.acquireClasses(op, smooths, logits, labels, c); err != nil {
		return in, e, err
	}
	grad, err := rt.acquireLossGrad(op, logits, dloss)
	switch {
	case err != nil:
	case e.Each && !slices.Equal(dloss.shape, labels.shape):
		err = fmt.Errorf("tensor: %s: %w: the losses' gradient is %v: want %v, as the labels", op, ErrShape, dloss.shape, labels.shape)
	case !e.Each && dloss.Elements() != 1:
		err = fmt.Errorf("tensor: %s: %w: the loss's gradient is %v: want a scalar", op, ErrShape, dloss.shape)
	}
	in.add(&grad)
	in, err = in.unless(err)
	return in, e, err
}

// acquireLossGrad checks and holds the gradient of a loss of x, which has the loss's dtype.
func (rt *Runtime) acquireLossGrad(op string, x, dloss *Tensor) (operands, error) {
	in, err := rt.acquireFloats(op, dloss)
	if err == nil && dloss.dtype != x.dtype.Computes() {
		err = fmt.Errorf("tensor: %s: %w: the loss's gradient is %v: want %v for %v", op, ErrDtype, dloss.dtype, x.dtype.Computes(), x.dtype)
	}
	return in.unless(err)
}

// acquireClasses checks and holds the operands of a loss of classes, and returns the loss's
// parameters. smooths allows label smoothing.
func (rt *Runtime) acquireClasses(op string, smooths bool, logits, labels *Tensor, c *LossConfig) (in operands, e plan.Entropy, err error) {
	takes := []string{"IgnoreIndex", "Weight", "LabelSmoothing"}
	if !smooths {
		takes = takes[:2]
	}
	if op == "CrossEntropyGrad" {
		takes = append(takes, "RowSums")
	}
	if err := c.Check(op, takes...); err != nil {
		return in, e, err
	}
	var room [4]*Tensor
	if in, err = rt.acquire(op, present(append(room[:0], logits, labels), c.Weight, c.RowSums)...); err != nil {
		return in, e, err
	}
	e, err = entropyOf(op, logits, labels, c)
	in, err = in.unless(err)
	return in, e, err
}

func entropyOf(op string, logits, labels *Tensor, c *LossConfig) (e plan.Entropy, err error) {
	if !logits.dtype.Float() || !labels.is(Int32, Int64) {
		return e, fmt.Errorf("tensor: %s: %w: logits are %v and labels %v: want a floating-point dtype, and int32 or int64", op, ErrDtype, logits.dtype, labels.dtype)
	}
	var want Shape
	var room [8]int
	switch shape := logits.shape; len(shape) {
	case 0:
		want = Shape{-1} // matches no shape
	case 1:
		e.Rows, want = plan.Rows{Cols: shape[0], Inner: 1}, Shape{}
	default:
		e.Rows, want = plan.Rows{Cols: shape[1], Inner: elements(shape[2:])}, append(append(room[:0], shape[0]), shape[2:]...)
	}
	if !slices.Equal(labels.shape, want) {
		return e, fmt.Errorf("tensor: %s: %w: logits are %v and labels %v: want (n, classes) and (n), followed by the same dimensions",
			op, ErrShape, logits.shape, labels.shape)
	}
	if w := c.Weight; w != nil && (w.dtype != logits.dtype.Computes() || len(w.shape) != 1 || w.shape[0] != e.Cols) {
		return e, fmt.Errorf("tensor: %s: %w: the weights are %v %v and the logits %v %v: want a weight for each class, %v",
			op, ErrShape, w.dtype, w.shape, logits.dtype, logits.shape, logits.dtype.Computes())
	}
	if int64(e.Cols) > math.MaxInt32 && labels.is(Int32) {
		return e, fmt.Errorf("tensor: %s: %w: %d classes do not fit int32 labels", op, ErrShape, e.Cols)
	}
	if s := c.RowSums; s != nil && (!s.is(Float64) || !slices.Equal(s.shape, append(append(Shape{}, want...), 2))) {
		return e, fmt.Errorf("tensor: %s: %w: the rows' sums are %v %v: want float64, the labels' shape %v followed by 2", op, ErrShape, s.dtype, s.shape, labels.shape)
	}
	e.Ignore, e.Smoothing = int64(c.IgnoreIndex), c.LabelSmoothing
	e.Mean, e.Each = c.Reduction == MeanReduction, c.Reduction == NoReduction
	return e, nil
}
