package tensor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Linear returns x wᵀ + bias for every row of x (rows, …, in), with w (out, in) and bias (out)
// (torch.nn.functional.linear). The result is bit-identical to [Layers.MatMul] with [TransB]
// followed by [Elementwise.AddBiasInPlace]. The host makes one pass over the memory.
func (l Layers) Linear(ctx context.Context, x, w, bias *Tensor) (*Tensor, error) {
	return l.rt.linear(ctx, "Linear", backend.MatMulAddBias, x, w, bias)
}

// LinearReLU is Linear and then ReLU.
func (l Layers) LinearReLU(ctx context.Context, x, w, bias *Tensor) (*Tensor, error) {
	return l.rt.linear(ctx, "LinearReLU", backend.MatMulAddBiasReLU, x, w, bias)
}

// LinearWeightGrad returns the gradients of the weights and the bias of [Layers.Linear]: dw = dyᵀ x
// (out, in), and db (out), the sums of dy's columns. dy (rows, …, out) is the gradient of the
// result, and x is (rows, …, in). db is nil if ofBias is false. On a GPU small ones are one launch.
func (d Gradients) LinearWeightGrad(ctx context.Context, dy, x *Tensor, ofBias bool) (dw, db *Tensor, err error) {
	rt := d.rt
	const op = "LinearWeightGrad"
	in, err := rt.acquireFloats(op, dy, x)
	if err != nil {
		return nil, nil, err
	}
	defer in.release()
	last := len(dy.shape) - 1
	if last < 0 || len(x.shape) != last+1 || !slices.Equal(dy.shape[:last], x.shape[:last]) {
		return nil, nil, fmt.Errorf("tensor: %s: %w: dy is %v and x %v: want (rows, …, out) and (rows, …, in)", op, ErrShape, dy.shape, x.shape)
	}
	p := product{Product: plan.Product{M: dy.shape[last], N: x.shape[last], K: elements(dy.shape[:last]), TransA: true}}
	g := grads{rt: rt, ctx: ctx, op: op, dtype: dy.dtype}
	db = g.alloc(ofBias, Shape{p.M})
	dw = g.alloc(true, Shape{p.M, p.N})
	switch {
	case g.err != nil:
	case dw.bytes > 0:
		g.err = rt.weightGrad(ctx, p, dw, db, dy, x)
	case db != nil && db.bytes > 0:
		g.err = rt.sumTo(ctx, db, keptColumns(dy), dy, 1)
	}
	if err := g.done(dw, db); err != nil {
		return nil, nil, err
	}
	return dw, db, nil
}

// LinearInputGrad returns the gradient of the input of [Layers.Linear], dx = dy w (rows, …, in), in
// new memory that the caller owns. dy (rows, …, out) is the gradient of the result, and w is (out,
// in).
//
// y is the input itself if [Layers.LinearReLU] made it, from rows of fanIn columns; otherwise y is
// nil, and fanIn is ignored. masked reports that dx includes the gradient of that ReLU. It always
// does on the host. On a GPU it does if the mask is part of the same launch and the sums of dx are
// part of the launch of [Gradients.LinearWeightGrad]. Shapes that don't fit are [ErrShape].
func (d Gradients) LinearInputGrad(ctx context.Context, dy, w, y *Tensor, fanIn int) (dx *Tensor, masked bool, err error) {
	rt := d.rt
	const op = "LinearInputGrad"
	in, err := rt.acquireFloats(op, dy, w)
	if err != nil {
		return nil, false, err
	}
	defer in.release()
	if len(w.shape) != 2 || len(dy.shape) == 0 || dy.shape[len(dy.shape)-1] != w.shape[0] {
		return nil, false, fmt.Errorf("tensor: %s: %w: dy is %v and the weights %v: want (rows, …, out) and (out, in)", op, ErrShape, dy.shape, w.shape)
	}
	var room [4]int
	p, shape, err := rt.planMatMul(dy, w, nil, room[:])
	if err != nil {
		return nil, false, err
	}
	if y != nil {
		in, err := rt.acquireFloats(op, y, w)
		if err != nil {
			return nil, false, err
		}
		defer in.release()
		if !slices.Equal(y.shape, shape) {
			// The clone keeps room on the stack.
			return nil, false, fmt.Errorf("tensor: %s: %w: y is %v: want %v, as the gradient is", op, ErrShape, y.shape, slices.Clone(shape))
		}
	}
	dx, err = rt.result(ctx, op, dy.dtype, shape, func(dx *Tensor) (err error) {
		if y != nil && dx.bytes > 0 {
			p.FanIn = fanIn
			if masked, err = rt.fused(ctx, rt.productCall(backend.MatMulMasked, p, dx, dy, w, y)); masked {
				return err
			}
		}
		return rt.matmul(ctx, p, dx, dy, w)
	})
	return dx, masked && err == nil, err
}

// weightGrad computes the gradient of a layer's weights, and the sums of dy's columns if db is not
// nil.
func (rt *Runtime) weightGrad(ctx context.Context, p product, dw, db, dy, x *Tensor) error {
	if db != nil {
		if done, err := rt.fused(ctx, rt.productCall(backend.MatMulSums, p, dw, dy, x, db)); done {
			return err
		}
		if err := rt.sumTo(ctx, db, keptColumns(dy), dy, 1); err != nil {
			return err
		}
	}
	return rt.matmul(ctx, p, dw, dy, x)
}

// keptColumns returns the shape of x with all its rows summed up.
func keptColumns(x *Tensor) Shape {
	kept := slices.Repeat(Shape{1}, len(x.shape))
	kept[len(kept)-1] = x.shape[len(kept)-1]
	return kept
}

func (rt *Runtime) linear(ctx context.Context, op string, of backend.Op, x, w, bias *Tensor) (*Tensor, error) {
	in, err := rt.acquireFloats(op, x, w, bias)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if len(w.shape) != 2 || len(bias.shape) != 1 || bias.shape[0] != w.shape[0] {
		return nil, fmt.Errorf("tensor: %s: %w: weights %v and bias %v: want (out, in) and (out)", op, ErrShape, w.shape, bias.shape)
	}
	var room [4]int
	p, shape, err := rt.planMatMul(x, w, []MatMulOption{TransB}, room[:])
	if err != nil {
		return nil, err
	}
	return rt.result(ctx, op, x.dtype, shape, func(out *Tensor) error { return rt.biased(ctx, of, p, out, x, w, bias) })
}

// biased computes a product with its bias and, depending on op, ReLU. It queues two operations if
// the backend does not support both in one.
func (rt *Runtime) biased(ctx context.Context, op backend.Op, p product, out, x, w, bias *Tensor) error {
	if done, err := rt.fused(ctx, rt.productCall(op, p, out, x, w, bias)); done {
		return err
	}
	if err := rt.matmul(ctx, p, out, x, w); err != nil {
		return err
	}
	then := backend.AddBias
	if op == backend.MatMulAddBiasReLU {
		then = backend.AddBiasReLU
	}
	return rt.backend.Do(ctx, rt.call(then, out, out, bias))
}
