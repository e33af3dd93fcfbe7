package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// call begins an operation on tensors, in the order of its operands; nil stands for an optional one
// that is absent. It computes in the dtype of the first one that is there.
func (rt *Runtime) call(op backend.Op, ts ...*Tensor) *backend.Call {
	c := rt.calls.New(op, backend.NoDtype)
	for _, t := range ts {
		if t != nil && c.Dtype == backend.NoDtype {
			c.Dtype = t.dtype
		}
		c.Add(t.ref())
	}
	return c
}

// run queues an operation that takes nothing but its operands.
func (rt *Runtime) run(ctx context.Context, op backend.Op, ts ...*Tensor) error {
	return rt.backend.Do(ctx, rt.call(op, ts...))
}

// planned queues an operation with a plan.
func (rt *Runtime) planned(ctx context.Context, op backend.Op, plan any, ts ...*Tensor) error {
	c := rt.call(op, ts...)
	c.Plan = plan
	return rt.backend.Do(ctx, c)
}

// fused queues a fusion if the backend supports it.
func (rt *Runtime) fused(ctx context.Context, c *backend.Call) (done bool, err error) {
	if !rt.backend.Supports(c) {
		c.Free()
		return false, nil
	}
	return true, rt.backend.Do(ctx, c)
}

// supports reports whether the backend does a fusion of the operands.
func (rt *Runtime) supports(op backend.Op, ts ...*Tensor) bool {
	c := rt.call(op, ts...)
	defer c.Free()
	return rt.backend.Supports(c)
}

// ref is the tensor's memory as an operand; that of nil is absent.
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
