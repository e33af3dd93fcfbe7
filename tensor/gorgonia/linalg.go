package gorgonia

import (
	"fmt"

	gtensor "gorgonia.org/tensor"
)

// product sets out to a product of a and b. gonum's kernels take transposed operands but no
// strides. So other views are copied first, and the result is copied to out.
func (e *Engine) product(op string, f func(gtensor.StdEng, gtensor.Tensor, gtensor.Tensor, gtensor.Tensor) error, a, b, out gtensor.Tensor) error {
	return e.run(op, func(w *temps) error {
		if !isStrided(a) && !isStrided(b) && !isStrided(out) {
			return f(e.std, a, b, out)
		}
		tmp := gtensor.New(gtensor.WithEngine(e), gtensor.Of(out.Dtype()), gtensor.WithShape(out.Shape()...))
		defer discard(tmp)
		if err := f(e.std, w.unstrided(a), w.unstrided(b), tmp); err != nil {
			return err
		}
		return gtensor.Copy(out, tmp)
	}, a, b, out)
}

// isStrided reports whether t is a view whose elements are not contiguous.
func isStrided(t gtensor.Tensor) bool {
	d, ok := t.(*gtensor.Dense)
	return ok && d != nil && d.IsView() && !simple(d)
}

func (w *temps) unstrided(t gtensor.Tensor) gtensor.Tensor {
	if !isStrided(t) {
		return t
	}
	return w.compact(t)
}

// Outer adds the outer product of two vectors to out.
func (e *Engine) Outer(a, b, out gtensor.Tensor) error {
	return e.run("Outer", func(w *temps) error { return e.std.Outer(w.unstrided(a), w.unstrided(b), out) }, a, b, out)
}

// Inner returns the inner product of two vectors as a number of their type.
func (e *Engine) Inner(a, b gtensor.Tensor) (any, error) {
	return result(e.run, "Inner", func(w *temps) (any, error) { return e.std.Inner(w.unstrided(a), w.unstrided(b)) }, a, b)
}

// Dot returns the product of two numbers, vectors or matrices. For more dimensions it sums over the
// last axis of x and the second to last of y. With WithIncr it leaves no temporary. The result of
// two vectors, also of shapes (n, 1) and (1, n), is their inner product, a number; a tensor to
// reuse or to add to must then have one element.
func (e *Engine) Dot(x, y gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	reuse, incr, _ := options(opts)
	return result(e.run, "Dot", func(w *temps) (gtensor.Tensor, error) {
		a, b := x, y
		switch {
		case x.Dims() > 2 || y.Dims() > 2: // StdEng ignores strides
			a, b = onHeap(w.compact(x)), onHeap(w.compact(y))
		// StdEng transposes y temporarily, and loses an earlier T.
		case x.Shape().IsVector() && y.Shape().IsMatrix():
			b = sameData(w.compact(y))
		}
		// StdEng ignores reuse here.
		if x.Shape().IsVector() && y.Shape().IsVector() && reuse != nil && incr == nil {
			r, err := e.std.Dot(a, b)
			if r, err = e.deliver(r, err); err != nil {
				return nil, err
			}
			defer discard(r)
			return reuse, setNumber(reuse, r)
		}
		if incr == nil {
			r, err := e.std.Dot(a, b, opts...)
			return e.deliver(r, err, reuse)
		}
		return e.accumulate(incr, func() (gtensor.Tensor, error) {
			if reuse != nil {
				return e.std.Dot(a, b, gtensor.WithReuse(reuse))
			}
			return e.std.Dot(a, b)
		}, reuse)
	}, x, y, reuse, incr)
}

// setNumber sets t, which must have one element, to a number.
func setNumber(t, number gtensor.Tensor) error {
	switch {
	case t.Size() != 1:
		return fmt.Errorf("%w: the result is a number, and the tensor to reuse has shape %v", ErrShape, t.Shape())
	case t.Dtype() != number.Dtype():
		return fmt.Errorf("%w: the result is of %v, and the tensor to reuse of %v", ErrDtype, number.Dtype(), t.Dtype())
	}
	t.(*gtensor.Dense).Set(0, number.(*gtensor.Dense).Get(0))
	return nil
}

// onHeap returns t with another handle, so that the library allocates its temporaries in Go memory.
// TensorMul would leak them in the cache.
func onHeap(t gtensor.Tensor) gtensor.Tensor {
	s := sameData(t)
	gtensor.WithEngine(gtensor.StdEng{})(s)
	return s
}

// sameData returns t with a separate shape, which may be changed.
func sameData(t gtensor.Tensor) gtensor.Tensor {
	if d, ok := t.(*gtensor.Dense); ok {
		return d.ShallowClone()
	}
	return t
}

// Trace returns the sum of a matrix's diagonal as a number of its type.
func (e *Engine) Trace(t gtensor.Tensor) (any, error) {
	return result(e.run, "Trace", func(*temps) (any, error) { return e.std.Trace(t) }, t)
}

// SVD returns the singular value decomposition of a matrix. u and v are nil if uv is false.
func (e *Engine) SVD(a gtensor.Tensor, uv, full bool) (s, u, v gtensor.Tensor, err error) {
	all, err := result(e.run, "SVD", func(w *temps) (all [3]gtensor.Tensor, err error) {
		s, u, v, err := e.std.SVD(w.compact(a), uv, full)
		if err != nil {
			return all, err
		}
		for i, t := range []gtensor.Tensor{s, u, v} {
			if all[i], err = e.deliver(t, nil); err != nil {
				for _, done := range all {
					discard(done)
				}
				return all, err
			}
		}
		return all, nil
	}, a)
	return all[0], all[1], all[2], err
}
