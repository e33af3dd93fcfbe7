package gorgonia

import (
	"fmt"

	gtensor "gorgonia.org/tensor"
)

// Transpose moves the data of a tensor that was transposed with T (gtensor.Transposer). Because the
// library ignores the error in Reshape, the engine's next operation returns it as well.
func (e *Engine) Transpose(t gtensor.Tensor, strides []int) error {
	err := e.run("Transpose", func(*temps) error { return e.std.Transpose(t, strides) }, t)
	e.park(err)
	return err
}

// Concat joins tensors along an axis.
func (e *Engine) Concat(t gtensor.Tensor, axis int, others ...gtensor.Tensor) (gtensor.Tensor, error) {
	return result(e.run, "Concat", func(*temps) (gtensor.Tensor, error) {
		// StdEng reshapes row vectors and removes masks.
		handles := make([]gtensor.Tensor, len(others))
		for i, o := range others {
			handles[i] = sameData(o)
		}
		r, err := e.std.Concat(sameData(t), axis, handles...)
		return e.deliver(r, err)
	}, append(others[:len(others):len(others)], t)...)
}

// StackDense joins tensors along a new axis.
func (e *Engine) StackDense(t gtensor.DenseTensor, axis int, others ...gtensor.DenseTensor) (gtensor.DenseTensor, error) {
	all := []gtensor.Tensor{t}
	for _, o := range others {
		all = append(all, o)
	}
	return result(e.run, "StackDense", func(*temps) (gtensor.DenseTensor, error) {
		r, err := e.std.StackDense(t, axis, others...)
		d, err := e.deliver(r, err)
		if err != nil {
			return nil, err
		}
		return d.(gtensor.DenseTensor), nil
	}, all...)
}

// Repeat repeats the elements along an axis, or gtensor.AllAxes.
func (e *Engine) Repeat(t gtensor.Tensor, axis int, repeats ...int) (gtensor.Tensor, error) {
	shape, _, _, err := t.Shape().Repeat(axis, repeats...)
	if err != nil {
		return nil, fmt.Errorf("gorgonia: Repeat: %w", err)
	}
	var out *gtensor.Dense
	err = e.run("Repeat", func(w *temps) error {
		out = gtensor.New(gtensor.WithEngine(e), gtensor.Of(t.Dtype()), gtensor.WithShape(shape...))
		return e.repeat(w, t, out, axis, repeats)
	}, t)
	if err != nil {
		discard(out)
		return nil, err
	}
	return out, nil
}

// RepeatReuse is Repeat into reuse, which must have the result's shape.
func (e *Engine) RepeatReuse(t, reuse gtensor.Tensor, axis int, repeats ...int) (gtensor.Tensor, error) {
	return result(e.run, "RepeatReuse", func(w *temps) (gtensor.Tensor, error) {
		return reuse, e.repeat(w, t, reuse, axis, repeats)
	}, t, reuse)
}

// repeat uses handles with StdEng as the engine. For other engines the library would copy the rest
// of the source for each element.
func (e *Engine) repeat(w *temps, t, out gtensor.Tensor, axis int, repeats []int) error {
	_, err := e.std.RepeatReuse(onHeap(w.compact(t)), onHeap(out), axis, repeats...)
	return err
}

// Diag returns a tensor of t's shape that begins with the diagonal of the matrix t, followed by
// zeros.
func (e *Engine) Diag(t gtensor.Tensor) (gtensor.Tensor, error) {
	return e.one(e.run, "Diag", t, e.std.Diag)
}

// SelectByIndices selects elements along an axis by a vector of Int.
func (e *Engine) SelectByIndices(a, indices gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	reuse, _, unsafe := options(opts)
	return result(e.run, "SelectByIndices", func(w *temps) (gtensor.Tensor, error) {
		if unsafe && reuse == nil {
			return e.std.SelectByIndices(a, indices, axis, opts...)
		}
		r, err := e.std.SelectByIndices(w.compact(a), w.compact(indices), axis)
		if r, err = e.deliver(r, err); err != nil || reuse == nil {
			return r, err
		}
		defer discard(r) // StdEng ignores reuse
		if !reuse.Shape().Eq(r.Shape()) {
			return nil, fmt.Errorf("the tensor to reuse has shape %v: the result has %v", reuse.Shape(), r.Shape())
		}
		return reuse, gtensor.Copy(reuse, r)
	}, a, indices, reuse)
}

// SelectByIndicesB returns the gradient of the input of SelectByIndices. With WithReuse it is added
// to that tensor.
func (e *Engine) SelectByIndicesB(input, outGrad, indices gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	reuse, _, _ := options(opts)
	return result(e.run, "SelectByIndicesB", func(w *temps) (gtensor.Tensor, error) {
		r, err := e.std.SelectByIndicesB(w.compact(input), w.compact(outGrad), w.compact(indices), axis, opts...)
		return e.deliver(r, err, reuse)
	}, input, outGrad, indices, reuse)
}
