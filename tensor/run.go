package tensor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// run is runAlong without dims.
func (rt *Runtime) run(ctx context.Context, o opSpec, ts ...*Tensor) (*Tensor, error) {
	return rt.runAlong(ctx, o, nil, ts...)
}

// runAlong runs an operation: it checks and holds the operands, infers the result's shape and the
// plan, allocates the result, and queues the call. dims are the axes, or the shape, for the
// inference; they may be on the caller's stack.
func (rt *Runtime) runAlong(ctx context.Context, o opSpec, dims []int, ts ...*Tensor) (*Tensor, error) {
	if o.name == "" {
		o.name = o.op.Name()
	}
	in, err := rt.acquireFloats(o.name, ts...)
	if err != nil {
		return nil, err
	}
	defer in.release()
	c := rt.calls.New(o.op, ts[0].dtype)
	shape, err := rt.infer(&o, c, dims, ts)
	if err != nil {
		c.Free()
		return nil, err
	}
	out, err := rt.outcome(ctx, &o, &in, shape, ts)
	if err != nil {
		c.Free()
		return nil, err
	}
	c.Add(out.ref())
	for _, t := range ts {
		c.Add(t.ref())
	}
	if rt.onOperation != nil {
		noteShapes(c, out)
		noteShapes(c, ts...)
	}
	for c.N < len(o.op.Roles()) { // optional operands
		c.Add(backend.Ref{})
	}
	err = rt.backend.Do(ctx, c)
	if o.to == inPlace || out == o.dst {
		return out, err
	}
	return out.orRelease(err)
}

// outcome returns the tensor for an operation's result. in holds the operands ts.
func (rt *Runtime) outcome(ctx context.Context, o *opSpec, in *operands, shape Shape, ts []*Tensor) (*Tensor, error) {
	switch {
	case o.to == donated:
		var second *Tensor
		if len(ts) > 1 {
			second = ts[1]
		}
		return rt.allocResult(ctx, o.name, in, shape, ts[0], second)
	case o.to == inPlace:
		x := ts[0]
		if !slices.Equal(shape, x.shape) {
			// shape may be on the caller's stack.
			return nil, fmt.Errorf("tensor: %s: %w: %v and %v make %v, which does not fit into the first", o.name, ErrShape, x.shape, ts[1].shape, slices.Clone(shape))
		}
		if slices.ContainsFunc(ts[1:], x.overlaps) {
			return nil, overlapError(o.name)
		}
		x.overwritten()
		return x, nil
	case o.to == into && o.dst != nil:
		return o.dst, rt.overwrite(o.name, in, o.dst, ts[0], ts[1:]...)
	case o.dtype != 0:
		return rt.alloc(ctx, o.name, o.dtype, shape)
	default:
		return rt.alloc(ctx, o.name, ts[0].dtype, shape)
	}
}

// into runs a kernel whose result goes to dst or, if that is nil, to a new tensor, of the shape and
// dtype of like. dst may be like, but must overlap no other tensor that the kernel reads. in holds
// like, and then dst, too.
func (rt *Runtime) into(ctx context.Context, op string, in *operands, dst, like *Tensor, others []*Tensor, run func(out *Tensor) error) (*Tensor, error) {
	if dst == nil {
		return rt.result(ctx, op, like.dtype, like.shape, run)
	}
	if err := rt.overwrite(op, in, dst, like, others...); err != nil {
		return nil, err
	}
	return dst, run(dst)
}

// overwrite checks dst, to which an operation writes a result of the shape and dtype of like, holds
// it in in, which holds like, and counts the write. dst may be like, but must overlap no other
// tensor that the operation reads.
func (rt *Runtime) overwrite(op string, in *operands, dst, like *Tensor, others ...*Tensor) error {
	if dst != like {
		if err := rt.checkAlike(op, dst, like); err != nil {
			return err
		}
		if err := in.hold(rt, op, dst); err != nil {
			return err
		}
	}
	if dst.overlaps(like) || slices.ContainsFunc(others, dst.overlaps) {
		return overlapError(op)
	}
	dst.overwritten()
	return nil
}

// call begins an operation on tensors, in the order of its operands; nil stands for an absent
// optional operand. It computes in the dtype of the first tensor.
func (rt *Runtime) call(op backend.Op, ts ...*Tensor) *backend.Call {
	c := rt.calls.New(op, backend.NoDtype)
	for _, t := range ts {
		if t != nil && c.Dtype == backend.NoDtype {
			c.Dtype = t.dtype
		}
		c.Add(t.ref())
	}
	if rt.onOperation != nil {
		noteShapes(c, ts...)
	}
	return c
}

// planned queues an operation with a plan.
func (rt *Runtime) planned(ctx context.Context, op backend.Op, plan any, ts ...*Tensor) error {
	c := rt.call(op, ts...)
	c.Plan = plan
	return rt.backend.Do(ctx, c)
}

// fused queues a fused operation if the backend supports it.
func (rt *Runtime) fused(ctx context.Context, c *backend.Call) (done bool, err error) {
	if !rt.backend.Supports(c) {
		c.Free()
		return false, nil
	}
	return true, rt.backend.Do(ctx, c)
}

// supports reports whether the backend supports a fused operation on the operands.
func (rt *Runtime) supports(op backend.Op, ts ...*Tensor) bool {
	c := rt.call(op, ts...)
	defer c.Free()
	return rt.backend.Supports(c)
}

// ref returns the tensor's memory as an operand. Of nil it is an absent operand.
func (t *Tensor) ref() backend.Ref {
	if t == nil {
		return backend.Ref{}
	}
	r := backend.Ref{Ptr: t.ptr(), Bytes: t.bytes, Dtype: t.dtype}
	if host := t.store.host; host != nil && t.bytes > 0 {
		r.Host = &host[t.offset]
	}
	return r
}

// zipTo queues an operation on two operands, which broadcast to out's shape.
func (rt *Runtime) zipTo(ctx context.Context, op backend.Op, out, a, b *Tensor) error {
	c := rt.call(op, out, a, b)
	c.Plan = rt.broadcast(out.shape, a.shape, b.shape)
	return rt.backend.Do(ctx, c)
}

// sumTo queues the sums of x, divided by divisor. kept is out's shape with the summed dimensions as
// 1.
func (rt *Runtime) sumTo(ctx context.Context, out *Tensor, kept Shape, x *Tensor, divisor float64) error {
	c := rt.call(backend.Sum, out, x)
	c.Plan, c.C[0] = rt.reduction(x.shape, kept), divisor
	return rt.backend.Do(ctx, c)
}

// fill queues the operation that sets all elements of t.
func (rt *Runtime) fill(ctx context.Context, t *Tensor, value float64) error {
	c := rt.call(backend.Fill, t)
	c.C[0] = value
	return rt.backend.Do(ctx, c)
}
