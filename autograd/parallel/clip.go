package parallel

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// ClipNorm is optim.ClipGradNorm for sharded gradients: it combines the norms of all ranks' parts,
// and the norm of the gradients that each rank has whole. It computes on the device, in float64,
// which can represent the powers of every float32 norm. It adds in another order than the norm of
// whole gradients.
func (s *shards) ClipNorm(ctx context.Context, most, p float64, parts, whole []*tensor.Tensor) (total *tensor.Tensor, err error) {
	d := (*Parallel)(s)
	defer func() { err = d.tell(err) }()
	if !(most >= 0) || math.IsNaN(p) || p == 0 {
		return nil, fmt.Errorf("%w: at most %v of the %v-norm of sharded gradients: want a number of at least 0, and a norm other than 0", autograd.ErrInvalid, most, p)
	}
	ctx = tensor.Detached(ctx)
	dtype := tensor.Float32
	for _, g := range append(parts, whole...) {
		if g.Dtype() == tensor.Float64 {
			dtype = tensor.Float64
		}
	}
	op := device.ReduceSum
	if math.IsInf(p, 0) {
		if op = device.ReduceMax; p < 0 {
			op = device.ReduceMin
		}
	}
	total, err = power(ctx, d.rt, p, parts)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, total.ReleaseContext(ctx))
			total = nil
		}
	}()
	if err := d.AllReduce(ctx, total, op); err != nil {
		return total, err
	}
	rest, err := power(ctx, d.rt, p, whole)
	if err != nil {
		return total, err
	}
	defer func() { err = errors.Join(err, rest.ReleaseContext(ctx)) }()
	rt := d.rt
	// replace replaces total with the result of an operation.
	replace := func(next *tensor.Tensor, failed error) {
		if failed == nil {
			failed = total.ReleaseContext(ctx)
			total = next
		}
		err = errors.Join(err, failed)
	}
	switch op {
	case device.ReduceSum:
		replace(rt.Add(ctx, total, rest))
		if err == nil {
			replace(rt.PowScalar(ctx, total, 1/p))
		}
	case device.ReduceMax:
		replace(rt.Maximum(ctx, total, rest))
	default:
		replace(rt.Minimum(ctx, total, rest))
	}
	if err == nil && !math.IsInf(most, 1) {
		err = scale(ctx, rt, total, most, append(parts, whole...))
	}
	if err == nil && dtype != tensor.Float64 {
		replace(rt.Convert(ctx, total, dtype))
	}
	return total, err
}

// power returns a float64 scalar: the p-th power of the p-norm of ts, or the norm itself if p is
// infinite. Without elements it returns the neutral element.
func power(ctx context.Context, rt *tensor.Runtime, p float64, ts []*tensor.Tensor) (*tensor.Tensor, error) {
	var some []*tensor.Tensor
	for _, t := range ts {
		if t.Elements() > 0 {
			some = append(some, t)
		}
	}
	if some == nil {
		return rt.Full(ctx, max(0, -p), tensor.Float64) // +Inf for the least magnitude, p = -Inf
	}
	norm, err := rt.ClipNorm(ctx, math.Inf(1), p, some...)
	if err != nil {
		return nil, err
	}
	if norm.Dtype() != tensor.Float64 {
		wide, convert := rt.Convert(ctx, norm, tensor.Float64)
		if err := errors.Join(convert, norm.ReleaseContext(ctx)); err != nil {
			return nil, errors.Join(err, wide.ReleaseContext(ctx))
		}
		norm = wide
	}
	if math.IsInf(p, 0) {
		return norm, nil
	}
	power, err := rt.PowScalar(ctx, norm, p)
	return power, errors.Join(err, norm.ReleaseContext(ctx))
}

// scale multiplies ts by most/(total+1e-6) in place, if that is less than 1.
func scale(ctx context.Context, rt *tensor.Runtime, total *tensor.Tensor, most float64, ts []*tensor.Tensor) (err error) {
	factor, err := rt.AddScalar(ctx, total, 1e-6)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, factor.ReleaseContext(ctx)) }()
	for _, f := range []func() (*tensor.Tensor, error){
		func() (*tensor.Tensor, error) { return rt.PowScalar(ctx, factor, -1) },
		func() (*tensor.Tensor, error) { return rt.MulScalar(ctx, factor, most) },
		func() (*tensor.Tensor, error) { return rt.Clamp(ctx, factor, 0, 1) },
	} {
		next, err := f()
		if err := errors.Join(err, factor.ReleaseContext(ctx)); err != nil {
			return err
		}
		factor = next
	}
	narrow := map[tensor.Dtype]*tensor.Tensor{}
	defer func() {
		for _, f := range narrow {
			err = errors.Join(err, f.ReleaseContext(ctx))
		}
	}()
	for _, t := range ts {
		by := factor
		if dtype := t.Dtype(); dtype != factor.Dtype() {
			if by = narrow[dtype]; by == nil {
				if by, err = rt.Convert(ctx, factor, dtype); err != nil {
					return err
				}
				narrow[dtype] = by
			}
		}
		if err := rt.MulInPlace(ctx, t, by); err != nil {
			return err
		}
	}
	return nil
}
