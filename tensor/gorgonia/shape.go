package gorgonia

import (
	"fmt"

	gtensor "gorgonia.org/tensor"
)

// Transpose moves the data of a tensor that was transposed with T (gtensor.Transposer). Since the library
// ignores the error in Reshape, it is returned by the engine's next operation as well.
func (e *Engine) Transpose(t gtensor.Tensor, strides []int) error {
	err := e.run("Transpose", func() error { return e.std.Transpose(t, strides) }, t)
	e.park(err)
	return err
}

// Concat joins tensors along an axis.
func (e *Engine) Concat(t gtensor.Tensor, axis int, others ...gtensor.Tensor) (r gtensor.Tensor, err error) {
	err = e.run("Concat", func() error {
		handles := make([]gtensor.Tensor, len(others)) // it reshapes row vectors and takes masks away
		for i, o := range others {
			handles[i] = sameData(o)
		}
		r, err = e.std.Concat(sameData(t), axis, handles...)
		r, err = e.deliver(r, err)
		return err
	}, append(others[:len(others):len(others)], t)...)
	return r, err
}

// StackDense joins tensors along a new axis.
func (e *Engine) StackDense(t gtensor.DenseTensor, axis int, others ...gtensor.DenseTensor) (gtensor.DenseTensor, error) {
	all := []gtensor.Tensor{t}
	for _, o := range others {
		all = append(all, o)
	}
	var r gtensor.Tensor
	err := e.run("StackDense", func() (err error) {
		r, err = e.std.StackDense(t, axis, others...)
		r, err = e.deliver(r, err)
		return err
	}, all...)
	if err != nil {
		return nil, err
	}
	return r.(gtensor.DenseTensor), nil
}

// Repeat repeats the elements along an axis, or gtensor.AllAxes.
func (e *Engine) Repeat(t gtensor.Tensor, axis int, repeats ...int) (gtensor.Tensor, error) {
	shape, _, _, err := t.Shape().Repeat(axis, repeats...)
	if err != nil {
		return nil, fmt.Errorf("gorgonia: Repeat: %w", err)
	}
	var out *gtensor.Dense
	err = e.run("Repeat", func() error {
		out = gtensor.New(gtensor.WithEngine(e), gtensor.Of(t.Dtype()), gtensor.WithShape(shape...))
		return e.repeat(t, out, axis, repeats)
	}, t)
	if err != nil {
		discard(out)
		return nil, err
	}
	return out, nil
}

// RepeatReuse is Repeat into reuse, whose shape must be that of the result.
func (e *Engine) RepeatReuse(t, reuse gtensor.Tensor, axis int, repeats ...int) (gtensor.Tensor, error) {
	err := e.run("RepeatReuse", func() error { return e.repeat(t, reuse, axis, repeats) }, t, reuse)
	if err != nil {
		return nil, err
	}
	return reuse, nil
}

// repeat uses handles with StdEng as the engine: for other engines the library copies the rest of the source
// once an element.
func (e *Engine) repeat(t, out gtensor.Tensor, axis int, repeats []int) error {
	c, done := compact(t)
	defer done()
	_, err := e.std.RepeatReuse(onHeap(c), onHeap(out), axis, repeats...)
	return err
}

// Diag is a tensor of t's shape that begins with the diagonal of the matrix t, the rest being zero.
func (e *Engine) Diag(t gtensor.Tensor) (gtensor.Tensor, error) {
	return e.one("Diag", t, e.std.Diag)
}

// SelectByIndices picks elements along an axis by a vector of Int.
func (e *Engine) SelectByIndices(a, indices gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) (r gtensor.Tensor, err error) {
	reuse, _, unsafe := options(opts)
	err = e.run("SelectByIndices", func() error {
		if unsafe && reuse == nil {
			r, err = e.std.SelectByIndices(a, indices, axis, opts...)
			return err
		}
		c, done := compact(a)
		defer done()
		i, done := compact(indices)
		defer done()
		r, err = e.std.SelectByIndices(c, i, axis)
		if r, err = e.deliver(r, err); err != nil || reuse == nil {
			return err
		}
		defer discard(r) // StdEng ignores reuse
		if !reuse.Shape().Eq(r.Shape()) {
			return fmt.Errorf("the tensor to reuse has shape %v: the result has %v", reuse.Shape(), r.Shape())
		}
		err = gtensor.Copy(reuse, r)
		r = reuse
		return err
	}, a, indices, reuse)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// SelectByIndicesB is the gradient of the input of SelectByIndices; with WithReuse it is added.
func (e *Engine) SelectByIndicesB(input, outGrad, indices gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) (r gtensor.Tensor, err error) {
	reuse, _, _ := options(opts)
	err = e.run("SelectByIndicesB", func() error {
		g, done := compact(outGrad)
		defer done()
		i, done := compact(indices)
		defer done()
		in, done := compact(input)
		defer done()
		r, err = e.std.SelectByIndicesB(in, g, i, axis, opts...)
		r, err = e.deliver(r, err, reuse)
		return err
	}, input, outGrad, indices, reuse)
	return r, err
}
