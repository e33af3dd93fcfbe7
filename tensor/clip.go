package tensor

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// maxNormBlocks is how many blocks of a launch share a tensor's norm.
const maxNormBlocks = 256

// ClipNorm scales the tensors in place, so that the p-norm of their p-norms is at most about most (torch.nn.utils.clip_grad_norm_): with
// most/(norm+1e-6), if that is less than 1. It returns the norm that they had, as a scalar that the caller releases, and waits for
// nothing. p is any number or an infinity; 2 is the usual norm. most of math.Inf(1) leaves the tensors alone. A norm
// that is NaN makes them all NaN. Without tensors the norm is a float32 of 0; it is float64 if any of them is. No two may share memory.
func (rt *Runtime) ClipNorm(ctx context.Context, most, p float64, ts ...*Tensor) (*Tensor, error) {
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
		if t.dtype == Float64 {
			dtype = Float64
		}
		per = max(per, min(t.count()/1024, maxNormBlocks))
	}
	if len(ts) == 0 {
		return rt.Zeros(ctx, dtype)
	}
	total, err := rt.alloc(ctx, "ClipNorm", dtype, Shape{})
	if err != nil {
		return nil, err
	}
	parts, err := rt.allocScratch(ctx, "ClipNorm", Float64, Shape{len(ts)*per + 1})
	if err != nil {
		return total.orRelease(err)
	}
	if err = rt.kernels.norm(total, ts, kernel.Norm(p), parts); err == nil && !math.IsInf(most, 1) {
		overwritten(ts...)
		err = rt.kernels.clip(ts, parts, most)
	}
	return total.orRelease(errors.Join(err, parts.ReleaseContext(ctx)))
}

// lastNumber is the last element of a tensor of Float64.
func (t *Tensor) lastNumber() device.Range {
	const size = 8
	return device.Range{Ptr: t.ptr() + device.Ptr(t.bytes-size), Bytes: size}
}

// ClipValue keeps the elements of the tensors, in place, within -most and most (torch.nn.utils.clip_grad_value_). NaN stays.
func (rt *Runtime) ClipValue(_ context.Context, most float64, ts ...*Tensor) error {
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
	return rt.kernels.bound(ts, most)
}
