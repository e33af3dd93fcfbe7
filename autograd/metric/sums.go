package metric

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// sums are numbers that add up in device memory. They are float64, which counts up to 2^53 rows
// exactly.
type sums struct {
	rt     *tensor.Runtime
	total  *tensor.Tensor
	ignore []int // labels that do not count
	err    error // of the making
}

func newSums(ctx context.Context, call string, rt *tensor.Runtime, ignore []int, shape ...int) sums {
	s := sums{rt: rt, ignore: ignore}
	if ctx == nil || rt == nil {
		s.err = fmt.Errorf("metric: %s: %w: the context or the runtime is nil", call, autograd.ErrInvalid)
		return s
	}
	if s.total, s.err = rt.Zeros(tensor.Detached(ctx), tensor.Float64, shape...); s.err != nil {
		s.err = fmt.Errorf("metric: %s: %w", call, s.err)
	}
	return s
}

// Err returns the error of making the metric, or nil.
func (s *sums) Err() error {
	if s.err == nil && s.rt == nil {
		return fmt.Errorf("metric: %w: the metric was not made by NewMean or NewConfusion", autograd.ErrInvalid)
	}
	return s.err
}

// Sums returns the sums in device memory. The metric owns them. To add those of all ranks, call
// parallel.Parallel.AllReduce on them, before the value is read and Reset is called.
func (s *sums) Sums() *tensor.Tensor { return s.total }

// Reset sets the sums to 0, for example before an epoch. In a capture it does so at each replay.
func (s *sums) Reset(ctx context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	return s.rt.Zero(ctx, s.total)
}

// Close frees the memory. It is idempotent.
func (s *sums) Close() error { return s.total.Release() }

// read waits for the device.
func (s *sums) read(ctx context.Context) ([]float64, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	return tensor.ToSlice[float64](ctx, s.total, nil)
}

// add adds the result of f, which f computes on a tape of NoGrad.
func (s *sums) add(t *autograd.Tape, call string, f func(c *autograd.Tape) *autograd.Variable) {
	if t.Err() != nil {
		return
	}
	err := s.Err()
	if err == nil && t.Runtime() != s.rt {
		err = fmt.Errorf("%w: the tape is of another runtime than the metric", tensor.ErrRuntime)
	}
	if err == nil {
		c := autograd.NoGrad(t.Context(), s.rt)
		if x := f(c); c.Err() == nil {
			err = s.rt.AddInPlace(c.Context(), s.total, x.Value())
		}
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		t.Fail(fmt.Errorf("metric: %s: %w", call, err))
	}
}

// tensorOf returns a target's tensor, or nil for another type.
func tensorOf(target autograd.Target) *tensor.Tensor {
	switch y := target.(type) {
	case *autograd.Variable:
		return y.Value()
	case *tensor.Tensor:
		return y
	}
	return nil
}

// counted returns 1 for each label that counts and 0 for the others, or nil if all count.
func (s *sums) counted(c *autograd.Tape, labels *tensor.Tensor) (each *autograd.Variable) {
	for _, label := range s.ignore {
		e := c.Cast(c.NotEqual(c.Input(labels), constant(c, float64(label), labels.Dtype())), tensor.Float64)
		if each != nil {
			e = c.Mul(each, e)
		}
		each = e
	}
	return each
}

// whole returns a tensor of whole numbers in float64.
func whole(c *autograd.Tape, x *tensor.Tensor) *autograd.Variable {
	return c.Cast(c.Input(x), tensor.Float64)
}

// constant returns a vector of one number.
func constant(c *autograd.Tape, x float64, dtype tensor.Dtype) *autograd.Variable {
	full, err := c.Runtime().Full(c.Context(), x, dtype, 1)
	if err != nil {
		return c.Fail(err)
	}
	return c.Input(full)
}

// best returns the class of the greatest logit of each row.
func best(c *autograd.Tape, logits *autograd.Variable, labels *tensor.Tensor) *tensor.Tensor {
	x := logits.Value()
	if x.Released() {
		c.Fail(fmt.Errorf("the logits: %w: Keep them, or call this before the operation that frees them", tensor.ErrReleased))
		return nil
	}
	if d := labels.Dtype(); labels.Released() || d != tensor.Int32 && d != tensor.Int64 {
		c.Fail(fmt.Errorf("%w: labels %v: want int32 or int64", tensor.ErrDtype, labels))
		return nil
	}
	found, err := c.Runtime().ArgMax(c.Context(), x, min(1, x.Rank()-1))
	if err == nil && !found.SameShape(labels) {
		err = fmt.Errorf("%w: logits %v and labels %v: want (n, classes, …) and (n, …)", tensor.ErrShape, x.Shape(), labels.Shape())
	}
	if err != nil {
		c.Fail(err)
		return nil
	}
	return found
}
