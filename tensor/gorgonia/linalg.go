package gorgonia

import (
	"fmt"

	gtensor "gorgonia.org/tensor"
)

// product runs a product of a and b into out. gonum's kernels take transposed operands but no strides, so
// other views are copied first, and the result is copied into out.
func (e *Engine) product(op string, f func(gtensor.StdEng, gtensor.Tensor, gtensor.Tensor, gtensor.Tensor) error, a, b, out gtensor.Tensor) error {
	return e.run(op, func() error {
		if !isStrided(a) && !isStrided(b) && !isStrided(out) {
			return f(e.std, a, b, out)
		}
		a, done := unstrided(a)
		defer done()
		b, done := unstrided(b)
		defer done()
		tmp := gtensor.New(gtensor.WithEngine(e), gtensor.Of(out.Dtype()), gtensor.WithShape(out.Shape()...))
		defer discard(tmp)
		if err := f(e.std, a, b, tmp); err != nil {
			return err
		}
		return gtensor.Copy(out, tmp)
	}, a, b, out)
}

// isStrided reports whether t is a view whose elements are not one after the other.
func isStrided(t gtensor.Tensor) bool {
	d, ok := t.(*gtensor.Dense)
	return ok && d != nil && d.IsView() && !simple(d)
}

func unstrided(t gtensor.Tensor) (gtensor.Tensor, func()) {
	if !isStrided(t) {
		return t, func() {}
	}
	return compact(t)
}

// MatMul is the matrix product of a and b, into out, of float32, float64 and complex numbers.
func (e *Engine) MatMul(a, b, out gtensor.Tensor) error {
	return e.product("MatMul", gtensor.StdEng.MatMul, a, b, out)
}

// MatVecMul is the product of a matrix and a vector, into out.
func (e *Engine) MatVecMul(a, b, out gtensor.Tensor) error {
	return e.product("MatVecMul", gtensor.StdEng.MatVecMul, a, b, out)
}

// Outer adds the outer product of two vectors to out.
func (e *Engine) Outer(a, b, out gtensor.Tensor) error {
	return e.run("Outer", func() error {
		a, done := unstrided(a)
		defer done()
		b, done := unstrided(b)
		defer done()
		return e.std.Outer(a, b, out)
	}, a, b, out)
}

// Inner is the inner product of two vectors: a number of their type.
func (e *Engine) Inner(a, b gtensor.Tensor) (r any, err error) {
	err = e.run("Inner", func() error {
		a, done := unstrided(a)
		defer done()
		b, done := unstrided(b)
		defer done()
		r, err = e.std.Inner(a, b)
		return err
	}, a, b)
	return r, err
}

// Dot is the product of two tensors: of numbers, vectors, matrices, or over the last axis of x and the one
// before the last of y. With WithIncr it leaves no temporary behind. Vectors, also of shapes (n, 1) and (1, n), have
// an inner product, a number: a tensor to reuse or to add it to has one element.
func (e *Engine) Dot(x, y gtensor.Tensor, opts ...gtensor.FuncOpt) (r gtensor.Tensor, err error) {
	reuse, incr, _ := options(opts)
	err = e.run("Dot", func() error {
		a, b := x, y
		switch {
		case x.Dims() > 2 || y.Dims() > 2: // it ignores strides
			var done func()
			a, done = compact(x)
			defer done()
			b, done = compact(y)
			defer done()
			a, b = onHeap(a), onHeap(b)
		case x.Shape().IsVector() && y.Shape().IsMatrix(): // it transposes y for a moment, and loses an earlier T
			var done func()
			b, done = compact(y)
			defer done()
			b = sameData(b)
		}
		if x.Shape().IsVector() && y.Shape().IsVector() && reuse != nil && incr == nil { // which StdEng ignores
			r, err = e.std.Dot(a, b)
			if r, err = e.deliver(r, err); err != nil {
				return err
			}
			defer discard(r)
			if err = setNumber(reuse, r); err == nil {
				r = reuse
			}
			return err
		}
		if incr == nil {
			r, err = e.std.Dot(a, b, opts...)
			r, err = e.deliver(r, err, reuse)
			return err
		}
		r, err = e.accumulate(incr, func() (gtensor.Tensor, error) {
			if reuse != nil {
				return e.std.Dot(a, b, gtensor.WithReuse(reuse))
			}
			return e.std.Dot(a, b)
		}, reuse)
		return err
	}, x, y, reuse, incr)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// setNumber sets a tensor of one element.
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

// onHeap is t with another handle, on which the library makes its temporaries in Go memory: those of
// TensorMul would be lost in the cache.
func onHeap(t gtensor.Tensor) gtensor.Tensor {
	s := sameData(t)
	gtensor.WithEngine(gtensor.StdEng{})(s)
	return s
}

// sameData is t with a shape of its own, that may be changed.
func sameData(t gtensor.Tensor) gtensor.Tensor {
	if d, ok := t.(*gtensor.Dense); ok {
		return d.ShallowClone()
	}
	return t
}

// Trace is the sum of a matrix's diagonal: a number of its type.
func (e *Engine) Trace(t gtensor.Tensor) (r any, err error) {
	err = e.run("Trace", func() error {
		r, err = e.std.Trace(t)
		return err
	}, t)
	return r, err
}

// SVD is the singular value decomposition of a matrix. u and v are nil if uv is false.
func (e *Engine) SVD(a gtensor.Tensor, uv, full bool) (s, u, v gtensor.Tensor, err error) {
	err = e.run("SVD", func() error {
		c, done := compact(a)
		defer done()
		if s, u, v, err = e.std.SVD(c, uv, full); err != nil {
			return err
		}
		for _, p := range []*gtensor.Tensor{&s, &u, &v} {
			if *p, err = e.deliver(*p, nil); err != nil {
				for _, done := range []gtensor.Tensor{s, u, v} {
					discard(done)
				}
				return err
			}
		}
		return nil
	}, a)
	if err != nil {
		return nil, nil, nil, err
	}
	return s, u, v, nil
}
