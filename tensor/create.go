package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/memcache"
)

// New returns a tensor whose elements are undefined (torch.empty). Without dimensions it is a
// scalar. A shape may have a dimension of 0: such a tensor holds no memory, and operations on it do
// nothing, except that sums are 0 and means are NaN.
func (rt *Runtime) New(ctx context.Context, dtype Dtype, shape ...int) (*Tensor, error) {
	return rt.alloc(ctx, "New", dtype, shape)
}

func (rt *Runtime) alloc(ctx context.Context, op string, dtype Dtype, shape Shape) (*Tensor, error) {
	return rt.allocIn(ctx, op, dtype, shape, false)
}

// allocIn makes a tensor that belongs to the context's lifetime or, if it is an operation's
// scratch, to none.
func (rt *Runtime) allocIn(ctx context.Context, op string, dtype Dtype, shape Shape, scratch bool) (*Tensor, error) {
	c := rt.capturing.Load()
	if c == nil {
		return rt.allocOutside(ctx, op, dtype, shape, scratch)
	}
	if err := c.admits(ctx, op); err != nil {
		return nil, err
	}
	t, err := rt.allocOutside(ctx, op, dtype, shape, scratch)
	if err == nil {
		t.own.made = c.made
	}
	return t, err
}

// allocOutside is allocIn for memory that belongs to no capture.
func (rt *Runtime) allocOutside(ctx context.Context, op string, dtype Dtype, shape Shape, scratch bool) (*Tensor, error) {
	bytes, err := byteSize(op, dtype, shape)
	if err != nil {
		return nil, err
	}
	if rt.closed.Load() {
		return nil, fmt.Errorf("tensor: %s: %w", op, ErrClosed)
	}
	var block memcache.Block
	if scratch {
		block, err = rt.cache.AllocWorkspace(ctx, bytes, rt.stream)
	} else {
		block, err = rt.cache.Alloc(ctx, bytes, rt.stream)
	}
	if err != nil {
		// shape itself may be on the caller's stack.
		return nil, fmt.Errorf("tensor: %s: memory for %v %v: %w", op, dtype, slices.Clone(shape), err)
	}
	return rt.newTensor(ctx, op, block, dtype, shape, scratch)
}

// newTensor makes a tensor of a block, which it owns from then on, even after an error. The tensor
// belongs to the context's lifetime or, if it is an operation's scratch, to none.
func (rt *Runtime) newTensor(ctx context.Context, op string, block memcache.Block, dtype Dtype, shape Shape, scratch bool) (*Tensor, error) {
	l := lifetimeOf(ctx)
	t, h := rt.newHandle(l, dtype, shape)
	h.own.init(block, h.bytes, false)
	h.own.host = rt.hostBytes(block)
	if scratch {
		l = nil
	}
	return t.begin(ctx, l, op, h, &h.own, 0)
}

// Zeros makes a tensor of zeros.
func (rt *Runtime) Zeros(ctx context.Context, dtype Dtype, shape ...int) (*Tensor, error) {
	return rt.result(ctx, "Zeros", dtype, shape, func(t *Tensor) error { return rt.memset("Zeros", t) })
}

// Full makes a tensor whose elements are all value. A dtype of whole numbers must be able to
// represent it.
func (rt *Runtime) Full(ctx context.Context, value float64, dtype Dtype, shape ...int) (*Tensor, error) {
	if err := checkDtype("Full", dtype); err != nil {
		return nil, err
	}
	if err := checkValue("Full", value, dtype); err != nil {
		return nil, err
	}
	return rt.result(ctx, "Full", dtype, shape, func(t *Tensor) error { return rt.fill(ctx, t, value) })
}

// Zero sets every element of t to 0.
func (rt *Runtime) Zero(_ context.Context, t *Tensor) error {
	in, err := rt.acquire("Zero", t)
	if err != nil {
		return err
	}
	defer in.release()
	t.overwritten()
	return rt.memset("Zero", t)
}

// memset sets the tensors that are not nil to 0.
func (rt *Runtime) memset(op string, ts ...*Tensor) error {
	for _, t := range ts {
		if t == nil || t.bytes == 0 {
			continue
		}
		if err := rt.stream.Memset(t.ptr(), 0, t.bytes); err != nil {
			return fmt.Errorf("tensor: %s: %w", op, err)
		}
	}
	return nil
}

// result returns a new tensor that run fills.
func (rt *Runtime) result(ctx context.Context, op string, dtype Dtype, shape []int, run func(out *Tensor) error) (*Tensor, error) {
	out, err := rt.alloc(ctx, op, dtype, shape)
	if err != nil {
		return nil, err
	}
	return out.orRelease(run(out))
}

// pair returns two new tensors that run fills.
func (rt *Runtime) pair(ctx context.Context, op string, dtype Dtype, shape []int, second Dtype, secondShape []int, run func(a, b *Tensor) error) (a, b *Tensor, err error) {
	if a, err = rt.alloc(ctx, op, dtype, shape); err != nil {
		return nil, nil, err
	}
	if b, err = rt.alloc(ctx, op, second, secondShape); err == nil {
		err = run(a, b)
	}
	if err != nil {
		rt.parked.add(releaseAll(ctx, a, b))
		return nil, nil, err
	}
	return a, b, nil
}

// orRelease returns t, or, if err is not nil, releases it.
func (t *Tensor) orRelease(err error) (*Tensor, error) {
	if err == nil {
		return t, nil
	}
	t.rt.parked.add(t.Release())
	return nil, err
}

func releaseAll(ctx context.Context, ts ...*Tensor) (err error) {
	for _, t := range ts {
		if e := t.ReleaseContext(ctx); err == nil {
			err = e
		}
	}
	return err
}

func checkValue(op string, v float64, dtype Dtype) error {
	lo, hi, whole := dtype.Bounds()
	if whole && (v != math.Trunc(v) || v < lo || v > hi) {
		return fmt.Errorf("tensor: %s: %w: %v is not a value of %v: want a whole number in %.0f..%.0f", op, ErrInvalid, v, dtype, lo, hi)
	}
	return nil
}
