package gorgonia

import (
	"fmt"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// target is the destination of an elementwise operation.
type target struct {
	to        operand
	into      strided.Array // the kernel's destination: to, or a temporary
	increment bool          // the kernel adds to the destination
	reshape   gtensor.Shape // the given tensor's shape after the operation; nil if it fits
}

// target returns the destination of an operation on a and others, which have a's dimensions. It is
// a new tensor; or the tensor of WithReuse or WithIncr, to which the result is added if sums is
// set; or a itself with UseUnsafe. It does not change any tensor.
func (c *call) target(dt gtensor.Dtype, a operand, opts []gtensor.FuncOpt, sums bool, others ...strided.Array) (*target, error) {
	given, incr, unsafe := options(opts)
	t := &target{}
	switch {
	case incr != nil:
		given, t.increment = incr, sums
	case given == nil && unsafe:
		given = a.d
	}
	var err error
	if given == nil {
		t.to, err = c.result(dt, a.d.Shape().Clone())
		t.into = t.to.Array
		return t, err
	}
	if t.to, err = c.operand(given); err != nil {
		return nil, err
	}
	switch {
	case t.to.dtype() != dt:
		return nil, fmt.Errorf("%w: the result is of %v, and the tensor to put it in of %v", ErrDtype, dt, t.to.dtype())
	case t.to.Len() != a.Len():
		return nil, fmt.Errorf("%w: the result has shape %v, and the tensor to put it in %v", ErrShape, a.d.Shape(), t.to.d.Shape())
	}
	t.into, err = t.to.like(a)
	if err != nil {
		if !t.to.IsDense() {
			return nil, fmt.Errorf("%w: the result has shape %v, and the view to put it in %v", ErrShape, a.d.Shape(), t.to.d.Shape())
		}
		t.into, t.reshape = strided.Dense(t.to.Ptr, t.to.Size, a.Dims...), a.d.Shape().Clone()
	}
	t.to.Array = t.into
	for _, o := range append(others, a.Array) {
		if !t.into.Overlaps(o) || t.into.Matches(o) {
			continue
		}
		if t.into, err = c.temp(t.to.Size, a.Dims...); err == nil && t.increment {
			err = c.e.kernels.Copy(t.into, t.to.Array)
		}
		return t, err
	}
	return t, nil
}

// done finishes the operation. It has written t.into, unless err is not nil.
func (t *target) done(c *call, err error) (*gtensor.Dense, error) {
	if err == nil && !t.into.Matches(t.to.Array) {
		err = c.e.kernels.Copy(t.to.Array, t.into)
	}
	if err == nil && t.reshape != nil {
		err = t.to.d.Reshape(t.reshape...)
	}
	return t.to.d, err
}
