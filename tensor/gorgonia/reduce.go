package gorgonia

import (
	"slices"

	gtensor "gorgonia.org/tensor"
)

type reduceFunc = func(gtensor.StdEng, gtensor.Tensor, ...int) (gtensor.Tensor, error)

// one runs an operation that needs a compact operand and always allocates a new result.
func (e *Engine) one(run runner, op string, a gtensor.Tensor, f func(a gtensor.Tensor) (gtensor.Tensor, error)) (gtensor.Tensor, error) {
	return result(run, op, func(w *temps) (gtensor.Tensor, error) {
		r, err := f(w.compact(a))
		return e.deliver(r, err)
	}, a)
}

func (e *Engine) reduce(op string, f reduceFunc, a gtensor.Tensor, along []int) (gtensor.Tensor, error) {
	return e.one(e.run, op, a, func(a gtensor.Tensor) (gtensor.Tensor, error) {
		return f(e.std, notView(a), slices.Clone(along)...) // StdEng sorts it
	})
}

// notView returns a compact view as a tensor that is not a view, because StdEng would copy a view
// and lose the copy.
func notView(t gtensor.Tensor) gtensor.Tensor {
	d, ok := t.(*gtensor.Dense)
	if !ok || !d.IsView() {
		return t
	}
	return gtensor.New(gtensor.Of(d.Dtype()), gtensor.WithShape(d.Shape()...), gtensor.FromMemory(d.Uintptr(), d.MemSize()))
}

// Reduce folds the elements along an axis with fn.
func (e *Engine) Reduce(fn any, a gtensor.Tensor, axis int, defaultValue any, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.one(e.runCallback, "Reduce", a, func(a gtensor.Tensor) (gtensor.Tensor, error) {
		return e.std.Reduce(fn, a, axis, defaultValue, opts...)
	})
}

// OptimizedReduce is Reduce with functions for the first, the last and other axes.
func (e *Engine) OptimizedReduce(a gtensor.Tensor, axis int, firstFn, lastFn, defaultFn, defaultValue any, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.one(e.runCallback, "OptimizedReduce", a, func(a gtensor.Tensor) (gtensor.Tensor, error) {
		return e.std.OptimizedReduce(a, axis, firstFn, lastFn, defaultFn, defaultValue, opts...)
	})
}
