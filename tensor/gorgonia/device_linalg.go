package gorgonia

import (
	"context"
	"fmt"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// Products of matrices are the runtime's, and so the device's library's where it has one: they take dense and transposed operands
// as they lie, and others are copied first. The runtime makes the result, which is then copied to where the library wants it: one pass over
// the result beside the product's over its operands.

// MatMul is the matrix product of a and b, into out.
func (e *DeviceEngine) MatMul(a, b, out gtensor.Tensor) error {
	return e.do("MatMul", func(c *call) error {
		all, _, err := c.floats(a, b, out)
		if err != nil {
			return err
		}
		x, y, z := all[0], all[1], all[2]
		if len(x.Dims) != 2 || len(y.Dims) != 2 || x.Dims[1] != y.Dims[0] {
			return fmt.Errorf("%w: %v times %v", ErrShape, x.d.Shape(), y.d.Shape())
		}
		return c.productInto(x.Array, y.Array, z, x.Dims[0], y.Dims[1])
	})
}

// MatVecMul is the product of a matrix and a vector, into out.
func (e *DeviceEngine) MatVecMul(a, b, out gtensor.Tensor) error {
	return e.do("MatVecMul", func(c *call) error {
		all, _, err := c.floats(a, b, out)
		if err != nil {
			return err
		}
		x, y, z := all[0], all[1], all[2]
		if len(x.Dims) != 2 || !isVector(y) || x.Dims[1] != y.Len() {
			return fmt.Errorf("%w: %v times %v", ErrShape, x.d.Shape(), y.d.Shape())
		}
		return c.productInto(x.Array, reshaped(y.Array, []int{y.Len(), 1}), z, x.Dims[0], 1)
	})
}

func isVector(o operand) bool { return o.d.Shape().IsVector() || len(o.Dims) == 2 && o.Len() == 1 }

// productInto puts a product of m by n elements into z.
func (c *call) productInto(x, y strided.Array, z operand, m, n int) error {
	to := z.Array
	if z.Len() != m*n || !(len(z.Dims) == 2 && z.Dims[0] == m && z.Dims[1] == n || isVector(z) && (m == 1 || n == 1)) {
		return fmt.Errorf("%w: the result has shape %v, and the tensor to put it in %v", ErrShape, gtensor.Shape{m, n}, z.d.Shape())
	}
	p, err := c.product(x, y, z.dtype())
	if err != nil {
		return err
	}
	c.temps = append(c.temps, p)
	return c.e.kernels.Copy(reshapedTo(to, m, n), strided.Dense(start(p), x.Size, m, n))
}

// reshapedTo is a matrix or a vector as a matrix.
func reshapedTo(a strided.Array, m, n int) strided.Array { return reshaped(a, []int{m, n}) }

// product is the runtime's product of two matrices.
func (c *call) product(x, y strided.Array, dt gtensor.Dtype) (*tensor.Tensor, error) {
	a, transA, err := c.matrix(x, dt)
	if err != nil {
		return nil, err
	}
	b, transB, err := c.matrix(y, dt)
	if err != nil {
		return nil, err
	}
	var turned tensor.MatMulOption
	if transA {
		turned |= tensor.TransA
	}
	if transB {
		turned |= tensor.TransB
	}
	return c.e.rt.MatMul(context.Background(), a, b, turned)
}

// matrix is a matrix for the runtime's product, which is told if it lies transposed.
func (c *call) matrix(x strided.Array, dt gtensor.Dtype) (t *tensor.Tensor, transposed bool, err error) {
	if turned := x.Permute(1, 0); !x.IsDense() && turned.IsDense() {
		t, err = c.tensor(turned, dt, turned.Dims...)
		return t, true, err
	}
	if x, err = c.dense(x); err != nil {
		return nil, false, err
	}
	t, err = c.tensor(x, dt, x.Dims...)
	return t, false, err
}

// Outer adds the outer product of two vectors to out. (The package function gtensor.Outer can't be used: it zeroes its result
// where it can't.)
func (e *DeviceEngine) Outer(a, b, out gtensor.Tensor) error {
	return e.do("Outer", func(c *call) error {
		all, t, err := c.floats(a, b, out)
		if err != nil {
			return err
		}
		x, y, z := all[0], all[1], all[2]
		m, n := x.Len(), y.Len()
		if !isVector(x) || !isVector(y) || len(z.Dims) != 2 || z.Dims[0] != m || z.Dims[1] != n {
			return fmt.Errorf("%w: %v and %v into %v", ErrShape, x.d.Shape(), y.d.Shape(), z.d.Shape())
		}
		if z.Overlaps(x.Array) || z.Overlaps(y.Array) {
			return fmt.Errorf("%w: the tensor to add to shares memory with an operand", ErrInvalid)
		}
		down := reshaped(x.Array, []int{m}).Insert(1, n)
		across := reshaped(y.Array, []int{n}).Insert(0, m)
		return c.e.kernels.Zip(strided.Mul, t, z.Array, strided.Operand{Array: down}, strided.Operand{Array: across}, true)
	})
}

// Inner is the inner product of two vectors: a number of their type. It waits for it.
func (e *DeviceEngine) Inner(a, b gtensor.Tensor) (r any, err error) {
	err = e.do("Inner", func(c *call) error {
		all, _, err := c.floats(a, b)
		if err != nil {
			return err
		}
		p, err := c.inner(all[0], all[1])
		if err != nil {
			return err
		}
		c.temps = append(c.temps, p)
		r, err = item(p)
		return err
	})
	return r, err
}

func (c *call) inner(x, y operand) (*tensor.Tensor, error) {
	if !isVector(x) || !isVector(y) || x.Len() != y.Len() {
		return nil, fmt.Errorf("%w: %v and %v: want vectors of one length", ErrShape, x.d.Shape(), y.d.Shape())
	}
	n := x.Len()
	return c.product(reshapedTo(x.Array, 1, n), reshapedTo(y.Array, n, 1), x.dtype())
}

// item waits for a tensor of one element.
func item(t *tensor.Tensor) (any, error) {
	if t.Dtype() == tensor.Float32 {
		return tensor.Item[float32](context.Background(), t)
	}
	return tensor.Item[float64](context.Background(), t)
}

// Trace is the sum of a matrix's diagonal: a number of its type. It waits for it.
func (e *DeviceEngine) Trace(t gtensor.Tensor) (r any, err error) {
	err = e.do("Trace", func(c *call) error {
		all, _, err := c.floats(t)
		if err != nil {
			return err
		}
		x := all[0]
		if len(x.Dims) != 2 {
			return fmt.Errorf("%w %v: want a matrix", ErrShape, x.d.Shape())
		}
		diagonal := strided.Array{Ptr: x.Ptr, Size: x.Size, Dims: []int{min(x.Dims[0], x.Dims[1])}, Strides: []int{x.Strides[0] + x.Strides[1]}}
		if diagonal, err = c.dense(diagonal); err != nil {
			return err
		}
		sum, err := c.sum(diagonal, x.dtype())
		if err != nil {
			return err
		}
		c.temps = append(c.temps, sum)
		r, err = item(sum)
		return err
	})
	return r, err
}

// Dot is the product of two tensors: of numbers, vectors, matrices, or over the last axis of x and the one before the last of y.
// Vectors, also of shapes (n, 1) and (1, n), have an inner product, a number: a tensor to reuse or to add it to has one element.
func (e *DeviceEngine) Dot(x, y gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	if a, b := x.Shape(), y.Shape(); a.IsScalar() || b.IsScalar() {
		if a.IsScalar() {
			x, y = y, x
		}
		return e.zipScalar("Dot", strided.Mul, x, y, true, opts)
	}
	return e.one("Dot", func(c *call) (*gtensor.Dense, error) {
		all, _, err := c.floats(x, y)
		if err != nil {
			return nil, err
		}
		p, shape, err := c.dot(all[0], all[1])
		if err != nil {
			return nil, err
		}
		reuse, incr, _ := options(opts)
		if reuse == nil && incr == nil {
			r, err := c.adopt(p, all[0].dtype(), shape)
			return r.d, err
		}
		c.temps = append(c.temps, p)
		return c.put(strided.Dense(start(p), all[0].Size, shape...), all[0].dtype(), shape, reuse, incr)
	})
}

// dot is the product, and its shape: the dimensions of x and y without those that are summed over.
func (c *call) dot(x, y operand) (*tensor.Tensor, gtensor.Shape, error) {
	a, b := x.Array, y.Array
	if x.d.Shape().IsVector() && y.d.Shape().IsVector() {
		p, err := c.inner(x, y)
		return p, gtensor.Shape{}, err
	}
	switch { // a matrix of one column or row beside a matrix is a vector; beside more dimensions it is a matrix
	case x.d.Shape().IsVector() && len(b.Dims) == 2:
		a = reshaped(a, []int{x.Len()})
	case y.d.Shape().IsVector() && len(a.Dims) == 2:
		b = reshaped(b, []int{y.Len()})
	}
	k := len(a.Dims) - 1
	l := max(len(b.Dims)-2, 0)
	if a.Dims[k] != b.Dims[l] {
		return nil, nil, fmt.Errorf("%w: %v and %v: dimensions of %d and %d elements", ErrShape, x.d.Shape(), y.d.Shape(), a.Dims[k], b.Dims[l])
	}
	shape := append(gtensor.Shape{}, a.Dims[:k]...)
	order := []int{l}
	for i, n := range b.Dims {
		if i != l {
			shape = append(shape, n)
			order = append(order, i)
		}
	}
	left, err := c.flat(a, a.Len()/a.Dims[k], a.Dims[k])
	if err != nil {
		return nil, nil, err
	}
	right, err := c.flat(b.Permute(order...), a.Dims[k], b.Len()/a.Dims[k])
	if err != nil {
		return nil, nil, err
	}
	p, err := c.product(left, right, x.dtype())
	return p, shape, err
}

// flat is an array as a matrix: copied, unless it is a matrix or dense.
func (c *call) flat(a strided.Array, rows, cols int) (strided.Array, error) {
	if len(a.Dims) == 2 {
		return a, nil
	}
	d, err := c.dense(a)
	return strided.Dense(d.Ptr, d.Size, rows, cols), err
}

// put copies a result into reuse, or adds it to incr, which get its shape.
func (c *call) put(x strided.Array, dt gtensor.Dtype, shape gtensor.Shape, reuse, incr gtensor.Tensor) (*gtensor.Dense, error) {
	given := reuse
	if incr != nil {
		given = incr
	}
	all, t, err := c.floats(given)
	if err != nil {
		return nil, err
	}
	to := all[0]
	switch {
	case to.dtype() != dt:
		return nil, fmt.Errorf("%w: the result is of %v, and the tensor to put it in of %v", ErrDtype, dt, to.dtype())
	case to.Len() != x.Len():
		return nil, fmt.Errorf("%w: the result has shape %v, and the tensor to put it in %v", ErrShape, shape, to.d.Shape())
	}
	fits := to.d.Shape().Eq(shape) || to.Len() == 1
	into := reshaped(to.Array, x.Dims)
	if !fits && !to.IsDense() {
		return nil, fmt.Errorf("%w: the result has shape %v, and the view to put it in %v", ErrShape, shape, to.d.Shape())
	} else if !fits {
		into = strided.Dense(to.Ptr, to.Size, x.Dims...)
	}
	if incr != nil {
		err = c.e.kernels.Zip(strided.Add, t, into, strided.Operand{Array: into}, strided.Operand{Array: x}, false)
	} else {
		err = c.e.kernels.Copy(into, x)
	}
	if err == nil && !fits {
		err = to.d.Reshape(shape...)
	}
	return to.d, err
}
