package tensor

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/upcast"
)

// maxNormBlocks is the maximum number of blocks of a launch that share a tensor's norm.
const maxNormBlocks = 256

// ClipNorm scales the tensors in place so that the p-norm of their p-norms is at most about most
// (torch.nn.utils.clip_grad_norm_). The factor is most/(norm+1e-6), if that is less than 1.
// ClipNorm returns the norm before scaling, as a scalar that the caller releases, and does not wait
// for the device.
//
// p is any number or an infinity; 2 is the usual norm. If most is math.Inf(1), the tensors are left
// alone; otherwise a norm that is NaN makes them all NaN. The norm is float64 if any of the tensors
// is, and float32 otherwise. Without tensors it is 0. No two tensors may share memory. If the
// device refuses a launch after the first, some tensors are scaled and others are not.
func (d Gradients) ClipNorm(ctx context.Context, most, p float64, ts ...*Tensor) (*Tensor, error) {
	rt := d.rt
	if !(most >= 0) || math.IsNaN(p) {
		return nil, fmt.Errorf("tensor: ClipNorm: %w: at most %v of the %v-norm: want a number of at least 0, and a norm", ErrInvalid, most, p)
	}
	held := make(stepOperands, 0, len(ts))
	defer held.release()
	dtype, per := Float32, 1
	for _, t := range ts {
		if err := held.acquire(rt, "ClipNorm", t); err != nil {
			return nil, err
		}
		if wide := t.dtype.Computes(); wide.Size() > dtype.Size() {
			dtype = wide
		}
		per = max(per, min(t.count()/1024, maxNormBlocks))
	}
	if len(ts) == 0 {
		return rt.Zeros(ctx, dtype)
	}
	return rt.result(ctx, "ClipNorm", dtype, Shape{}, func(total *Tensor) error {
		parts, err := rt.allocScratch(ctx, "ClipNorm", Float64, Shape{len(ts)*per + 1})
		if err != nil {
			return err
		}
		if err = rt.norm(ctx, total, ts, p, parts, per); err == nil && !math.IsInf(most, 1) {
			overwritten(ts...)
			norm := parts.ref()
			norm.Ptr, norm.Bytes, norm.Host = norm.Ptr+device.Ptr(norm.Bytes-8), 8, nil
			err = rt.onEach(ctx, backend.Clip, ts, most, nil, norm)
		}
		return errors.Join(err, parts.ReleaseContext(ctx))
	})
}

// norm sets total, and the last number of parts, to the p-norm of the p-norms of the tensors. The
// numbers before the last one are scratch: each is their number per tensor.
func (rt *Runtime) norm(ctx context.Context, total *Tensor, ts []*Tensor, p float64, parts *Tensor, each int) error {
	size := each * backend.Float64.Size()
	part := func(i int) backend.Ref {
		return backend.Ref{Ptr: parts.ptr() + device.Ptr(i*size), Bytes: int64(size), Dtype: backend.Float64}
	}
	if err := rt.onEach(ctx, backend.Norm, ts, p, part); err != nil {
		return err
	}
	c := rt.call(backend.NormOfNorms, total, parts)
	c.C[0] = p
	backend.SetParams(c, plan.NormTotal{Each: each})
	return rt.backend.Do(ctx, c)
}

// onEach queues an operation on each of the tensors. Neighbours of one dtype share a call. If own
// is not nil, it returns a second operand for each tensor.
func (rt *Runtime) onEach(ctx context.Context, op backend.Op, ts []*Tensor, v float64, own func(i int) backend.Ref, args ...backend.Ref) error {
	var room [2]*backend.Call
	calls := room[:0]
	for i := 0; i < len(ts); {
		first := ts[i]
		c, l := rt.calls.New(op, first.dtype), backend.List{Stride: 1}
		c.C[0] = v
		for _, r := range args {
			c.Add(r)
		}
		for ; i < len(ts) && ts[i].dtype == c.Dtype; i++ {
			l.Refs = append(l.Refs, ts[i].ref())
			if own != nil {
				l.Refs, l.Stride = append(l.Refs, own(i)), 2
			}
		}
		c.SetList(l)
		if rt.onOperation != nil {
			noteItem(c, first, 1)
		}
		calls = append(calls, c)
	}
	return upcast.DoLists(ctx, rt.backend, calls)
}

// ClipValue limits the elements of the tensors, in place, to -most..most
// (torch.nn.utils.clip_grad_value_). NaN stays. If the device refuses a launch after the first,
// some tensors are clipped and others are not.
func (d Gradients) ClipValue(ctx context.Context, most float64, ts ...*Tensor) error {
	rt := d.rt
	if !(most >= 0) {
		return fmt.Errorf("tensor: ClipValue: %w: at most %v: want a number of at least 0", ErrInvalid, most)
	}
	held := make(stepOperands, 0, len(ts))
	defer held.release()
	for _, t := range ts {
		if err := held.acquire(rt, "ClipValue", t); err != nil {
			return err
		}
	}
	overwritten(ts...)
	return rt.onEach(ctx, backend.Bound, ts, most, nil)
}
