package gorgonia

import (
	"slices"

	gtensor "gorgonia.org/tensor"
)

type reduceFunc = func(gtensor.StdEng, gtensor.Tensor, ...int) (gtensor.Tensor, error)

// one runs an operation that needs a compact operand and always makes a new result.
func (e *Engine) one(op string, a gtensor.Tensor, f func(a gtensor.Tensor) (gtensor.Tensor, error)) (r gtensor.Tensor, err error) {
	err = e.run(op, func() error {
		r, err = e.oneResult(a, f)
		return err
	}, a)
	return r, err
}

func (e *Engine) oneResult(a gtensor.Tensor, f func(a gtensor.Tensor) (gtensor.Tensor, error)) (gtensor.Tensor, error) {
	c, done := compact(a)
	defer done()
	r, err := f(c)
	return e.deliver(r, err)
}

// fold is one for operations with functions of the user's.
func (e *Engine) fold(op string, a gtensor.Tensor, f func(a gtensor.Tensor) (gtensor.Tensor, error)) (r gtensor.Tensor, err error) {
	err = e.runCallback(op, func() error {
		r, err = e.oneResult(a, f)
		return err
	}, a)
	return r, err
}

func (e *Engine) reduce(op string, f reduceFunc, a gtensor.Tensor, along []int) (gtensor.Tensor, error) {
	return e.one(op, a, func(a gtensor.Tensor) (gtensor.Tensor, error) {
		return f(e.std, notView(a), slices.Clone(along)...) // StdEng sorts it
	})
}

// notView is a compact view as a tensor of its own: StdEng copies views, and loses the copy.
func notView(t gtensor.Tensor) gtensor.Tensor {
	d, ok := t.(*gtensor.Dense)
	if !ok || !d.IsView() {
		return t
	}
	return gtensor.New(gtensor.Of(d.Dtype()), gtensor.WithShape(d.Shape()...), gtensor.FromMemory(d.Uintptr(), d.MemSize()))
}

// Sum is the sum along axes; of all elements if there are none.
func (e *Engine) Sum(a gtensor.Tensor, along ...int) (gtensor.Tensor, error) {
	return e.reduce("Sum", gtensor.StdEng.Sum, a, along)
}

// Min is the smallest element along axes; of all elements if there are none.
func (e *Engine) Min(a gtensor.Tensor, along ...int) (gtensor.Tensor, error) {
	return e.reduce("Min", gtensor.StdEng.Min, a, along)
}

// Max is the largest element along axes; of all elements if there are none.
func (e *Engine) Max(a gtensor.Tensor, along ...int) (gtensor.Tensor, error) {
	return e.reduce("Max", gtensor.StdEng.Max, a, along)
}

// Reduce folds the elements along an axis with fn.
func (e *Engine) Reduce(fn any, a gtensor.Tensor, axis int, defaultValue any, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.fold("Reduce", a, func(a gtensor.Tensor) (gtensor.Tensor, error) {
		return e.std.Reduce(fn, a, axis, defaultValue, opts...)
	})
}

// OptimizedReduce is Reduce with functions for the first, the last and other axes.
func (e *Engine) OptimizedReduce(a gtensor.Tensor, axis int, firstFn, lastFn, defaultFn, defaultValue any, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.fold("OptimizedReduce", a, func(a gtensor.Tensor) (gtensor.Tensor, error) {
		return e.std.OptimizedReduce(a, axis, firstFn, lastFn, defaultFn, defaultValue, opts...)
	})
}

// Argmax gives the indices, of type Int, of the largest elements along an axis, or gtensor.AllAxes.
func (e *Engine) Argmax(t gtensor.Tensor, axis int) (gtensor.Tensor, error) {
	return e.one("Argmax", t, func(t gtensor.Tensor) (gtensor.Tensor, error) { return e.std.Argmax(t, axis) })
}

// Argmin gives the indices, of type Int, of the smallest elements along an axis, or gtensor.AllAxes.
func (e *Engine) Argmin(t gtensor.Tensor, axis int) (gtensor.Tensor, error) {
	return e.one("Argmin", t, func(t gtensor.Tensor) (gtensor.Tensor, error) { return e.std.Argmin(t, axis) })
}
