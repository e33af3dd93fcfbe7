package tensor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Linear returns x wᵀ + bias for every row of x (rows, …, in), of weights (out, in) and a bias
// (out) (torch.nn.functional.linear): the bits of [Layers.MatMul] with [TransB] and
// [Elementwise.AddBiasInPlace], on the host in one pass over the memory.
func (l Layers) Linear(ctx context.Context, x, w, bias *Tensor) (*Tensor, error) {
	return l.rt.linear(ctx, "Linear", backend.MatMulAddBias, x, w, bias)
}

// LinearReLU is Linear and then ReLU.
func (l Layers) LinearReLU(ctx context.Context, x, w, bias *Tensor) (*Tensor, error) {
	return l.rt.linear(ctx, "LinearReLU", backend.MatMulAddBiasReLU, x, w, bias)
}

// LinearWeightGrad gives the gradients of the weights and the bias of [Layers.Linear], dyᵀ x (out,
// in) and the sums of dy's columns (out), from that of its result, dy (rows, …, out), and from x
// (rows, …, in). db is nil if ofBias is false. On a GPU small ones are one launch.
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

// LinearInputGrad gives the gradient of the input of [Layers.Linear], dy w (rows, …, in), from that
// of its result, dy (rows, …, out), and the weights (out, in), in new memory, which is the
// caller's. y is the input itself, if a [Layers.LinearReLU] has made it, from rows of fanIn
// columns; else it is nil, and fanIn is not looked at. masked reports that dx went through the
// gradient of that ReLU as well: always on the host, and on a GPU where it is part of the same
// launch, and the sums of dx are part of [Gradients.LinearWeightGrad]'s. Shapes that don't fit are
// [ErrShape].
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
			return nil, false, fmt.Errorf("tensor: %s: %w: y is %v: want %v, as the gradient is", op, ErrShape, y.shape, slices.Clone(shape)) // so that room stays on the stack
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

// weightGrad is the product of a layer's weights' gradient, and the sums of dy's columns if db is
// not nil.
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

// keptColumns is the shape of x with all its rows summed up.
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

// biased is a product with its bias, and perhaps ReLU, by two operations where the backend does not
// do both at once.
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
