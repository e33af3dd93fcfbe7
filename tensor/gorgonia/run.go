package gorgonia

import (
	"context"
	"fmt"
	"slices"

	gtensor "gorgonia.org/tensor"
)

// runner is [Engine.run] or [Engine.runCallback].
type runner = func(op string, f func(*temps) error, operands ...gtensor.Tensor) error

// run runs one operation of the library on operands, after the streams have finished using them.
// The library panics for some operands; run returns that as an error.
func (e *Engine) run(op string, f func(*temps) error, operands ...gtensor.Tensor) error {
	return e.runCallback(op, func(w *temps) (err error) {
		defer recoverLibrary(&err)
		return f(w)
	}, operands...)
}

// runCallback is run for operations that call functions of the user. It does not recover their
// panics.
func (e *Engine) runCallback(op string, f func(*temps) error, operands ...gtensor.Tensor) (err error) {
	for _, t := range operands {
		if err := usable(t); err != nil {
			return fmt.Errorf("gorgonia: %s: %w", op, err)
		}
	}
	if err := e.ready(operands...); err != nil {
		return fmt.Errorf("gorgonia: %s: %w", op, err)
	}
	defer recoverMemory(op, &err)
	var w temps
	defer func() {
		for _, t := range w {
			discard(t)
		}
	}()
	if err := f(&w); err != nil {
		return fmt.Errorf("gorgonia: %s: %w", op, err)
	}
	return nil
}

// result is run for operations with a result. After an error the result is zero.
func result[R any](run runner, op string, f func(*temps) (R, error), operands ...gtensor.Tensor) (R, error) {
	var r, none R
	err := run(op, func(w *temps) (err error) {
		r, err = f(w)
		return err
	}, operands...)
	if err != nil {
		return none, err
	}
	return r, nil
}

// usable returns an error for operands without memory, on which the library's loops panic.
func usable(t gtensor.Tensor) error {
	d, ok := t.(*gtensor.Dense)
	switch {
	case !ok || d != nil && len(d.Raw) > 0:
		return nil
	case d == nil:
		return fmt.Errorf("%w: an operand is nil", ErrInvalid)
	case d.Shape().TotalSize() == 0:
		return fmt.Errorf("%w: an operand of shape %v has no elements: every dimension must be 1 or more", ErrShape, d.Shape())
	}
	return fmt.Errorf("an operand of shape %v: %w", d.Shape(), ErrReleased)
}

// ready waits until no queued work uses the engine's memory, or the memory of operands of other
// engines. It returns a parked error, if there is one.
func (e *Engine) ready(operands ...gtensor.Tensor) error {
	if err := e.heap.ready(); err != nil {
		return err
	}
	if err := e.wait(); err != nil {
		return err
	}
	for _, t := range operands {
		d, ok := t.(*gtensor.Dense)
		if !ok || d == nil {
			continue
		}
		if other, ok := d.Engine().(*Engine); ok && other != e {
			if err := other.wait(); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait waits for the stream. All work of a closed stream is complete.
func (e *Engine) wait() error {
	if done, err := e.stream.Query(); done && err == nil {
		return nil
	}
	if err := e.stream.Synchronize(context.Background()); err != nil && !e.stream.Closed() {
		return err
	}
	return nil
}

// options returns the tensors in opts, or nil.
func options(opts []gtensor.FuncOpt) (reuse, incr gtensor.Tensor, unsafe bool) {
	if len(opts) == 0 {
		return nil, nil, false
	}
	o := gtensor.ParseFuncOpts(opts...)
	return o.Reuse(), o.Incr(), !o.Safe()
}

// deliver moves the result r of an operation to the engine, unless it is one of the given tensors.
// If the operation failed, it releases what the operation allocated.
func (e *Engine) deliver(r gtensor.Tensor, err error, given ...gtensor.Tensor) (gtensor.Tensor, error) {
	d, ok := r.(*gtensor.Dense)
	if !ok || d == nil || slices.Contains(given, r) {
		if err != nil {
			return nil, err
		}
		return r, nil
	}
	owner, owned := d.Engine().(*Engine) // may be another engine
	_, foreign := d.Engine().(gtensor.NonStdEngine)
	switch {
	case err != nil:
		if !d.IsView() {
			discard(d)
		}
		return nil, err
	case owned && d.IsView():
		err = owner.retain(d, nil)
	case !foreign && plainKind(d.Dtype().Kind()):
		err = e.rehome(d)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// discard releases a temporary.
func discard(t gtensor.Tensor) {
	if d, ok := t.(*gtensor.Dense); ok && d != nil {
		if e, ok := d.Engine().(*Engine); ok {
			e.park(e.Release(d))
		}
	}
}

// temps are the temporaries of one operation, which are released after it.
type temps []gtensor.Tensor

// compact returns t, or a temporary copy if t is a view or transposed and its elements are not
// contiguous in row-major order. StdEng ignores strides in places.
func (w *temps) compact(t gtensor.Tensor) gtensor.Tensor {
	d, ok := t.(*gtensor.Dense)
	if !ok || d == nil || !d.IsMaterializable() || simple(d) {
		return t
	}
	c := d.Materialize()
	*w = append(*w, c)
	return c
}

// simple reports whether the elements of d are contiguous in row-major order.
func simple(d *gtensor.Dense) bool {
	if d.RequiresIterator() || d.DataOrder().IsColMajor() || d.DataOrder().IsTransposed() {
		return false
	}
	if d.Dims() < 2 {
		return d.Dims() == 0 || len(d.Strides()) == 1 && d.Strides()[0] == 1
	}
	want := 1
	for i := d.Dims() - 1; i >= 0; i-- {
		if d.Shape()[i] != 1 && d.Strides()[i] != want {
			return false
		}
		want *= d.Shape()[i]
	}
	return true
}

// accumulate adds the result of f to incr, and releases the result unless it is one of the given
// tensors.
func (e *Engine) accumulate(incr gtensor.Tensor, f func() (gtensor.Tensor, error), given ...gtensor.Tensor) (gtensor.Tensor, error) {
	r, err := f()
	if r, err = e.deliver(r, err, given...); err != nil {
		return nil, err
	}
	if !slices.Contains(given, r) {
		defer discard(r)
	}
	if incr.Size() != r.Size() {
		return nil, fmt.Errorf("%w: the result has shape %v, and the tensor to add it to %v", ErrShape, r.Shape(), incr.Shape())
	}
	if !incr.Shape().Eq(r.Shape()) {
		if err := incr.Reshape(r.Shape().Clone()...); err != nil {
			return nil, err
		}
	}
	return e.std.Add(incr, r, gtensor.UseUnsafe())
}
