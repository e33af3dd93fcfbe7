package gorgonia

import (
	"context"
	"fmt"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// Matrix products use the runtime, which uses the device's library if there is one. Dense and
// transposed operands are multiplied in place, and others are copied first. The runtime allocates
// the result, which is then copied to the destination.

// product sets out to the product of a matrix and a matrix or, if vector is set, a vector.
func (e *DeviceEngine) product(op string, vector bool, a, b, out gtensor.Tensor) error {
	return e.do(op, func(c *call) error {
		all, _, err := c.floats(a, b, out)
		if err != nil {
			return err
		}
		x, y, z := all[0], all[1], all[2]
		right := y.Array
		if vector && isVector(y) {
			right = reshaped(right, []int{y.Len(), 1})
		}
		if len(x.Dims) != 2 || len(right.Dims) != 2 || x.Dims[1] != right.Dims[0] || vector && right.Dims[1] != 1 {
			return fmt.Errorf("%w: %v times %v", ErrShape, x.d.Shape(), y.d.Shape())
		}
		m, n := x.Dims[0], right.Dims[1]
		if z.Len() != m*n || !(len(z.Dims) == 2 && z.Dims[0] == m && z.Dims[1] == n || isVector(z) && (m == 1 || n == 1)) {
			return fmt.Errorf("%w: the result has shape %v, and the tensor to put it in %v", ErrShape, gtensor.Shape{m, n}, z.d.Shape())
		}
		p, err := c.product(x.Array, right, z.dtype())
		if err != nil {
			return err
		}
		c.temps = append(c.temps, p)
		return c.e.kernels.Copy(reshaped(z.Array, []int{m, n}), strided.Dense(start(p), x.Size, m, n))
	})
}

func isVector(o operand) bool { return o.d.Shape().IsVector() || len(o.Dims) == 2 && o.Len() == 1 }

// product returns the runtime's product of two matrices.
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

// matrix returns x as a factor of the runtime's product, and whether its memory is transposed.
func (c *call) matrix(x strided.Array, dt gtensor.Dtype) (t *tensor.Tensor, transposed bool, err error) {
	if turned := x.Permute(1, 0); !x.IsDense() && turned.IsDense() {
		t, err = c.tensor(turned, dt)
		return t, true, err
	}
	if x, err = c.dense(x); err != nil {
		return nil, false, err
	}
	t, err = c.tensor(x, dt)
	return t, false, err
}

// Outer adds the outer product of two vectors to out. The package function gtensor.Outer can't be
// used, because it zeroes its result, whose memory the host can't access.
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

// Inner returns the inner product of two vectors as a number of their type. It waits for the
// result.
func (e *DeviceEngine) Inner(a, b gtensor.Tensor) (any, error) {
	return one(e, "Inner", func(c *call) (any, error) {
		all, _, err := c.floats(a, b)
		if err != nil {
			return nil, err
		}
		p, err := c.inner(all[0], all[1])
		if err != nil {
			return nil, err
		}
		return c.item(p)
	})
}

func (c *call) inner(x, y operand) (*tensor.Tensor, error) {
	if !isVector(x) || !isVector(y) || x.Len() != y.Len() {
		return nil, fmt.Errorf("%w: %v and %v: want vectors of one length", ErrShape, x.d.Shape(), y.d.Shape())
	}
	n := x.Len()
	return c.product(reshaped(x.Array, []int{1, n}), reshaped(y.Array, []int{n, 1}), x.dtype())
}

// item waits for the element of a temporary tensor with one element.
func (c *call) item(t *tensor.Tensor) (any, error) {
	c.temps = append(c.temps, t)
	if t.Dtype() == tensor.Float32 {
		return tensor.Item[float32](context.Background(), t)
	}
	return tensor.Item[float64](context.Background(), t)
}

// Trace returns the sum of a matrix's diagonal as a number of its type. It waits for the result.
func (e *DeviceEngine) Trace(t gtensor.Tensor) (any, error) {
	return one(e, "Trace", func(c *call) (any, error) {
		all, _, err := c.floats(t)
		if err != nil {
			return nil, err
		}
		x := all[0]
		if len(x.Dims) != 2 {
			return nil, fmt.Errorf("%w %v: want a matrix", ErrShape, x.d.Shape())
		}
		diagonal := strided.Array{Ptr: x.Ptr, Size: x.Size, Dims: []int{min(x.Dims[0], x.Dims[1])}, Strides: []int{x.Strides[0] + x.Strides[1]}}
		if diagonal, err = c.dense(diagonal); err != nil {
			return nil, err
		}
		sum, err := c.sum(diagonal, x.dtype())
		if err != nil {
			return nil, err
		}
		return c.item(sum)
	})
}

// Dot returns the product of two numbers, vectors or matrices. For more dimensions it sums over the
// last axis of x and the second to last of y. The result of two vectors, also of shapes (n, 1) and
// (1, n), is their inner product, a number; a tensor to reuse or to add to must then have one
// element.
func (e *DeviceEngine) Dot(x, y gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	if a, b := x.Shape(), y.Shape(); a.IsScalar() || b.IsScalar() {
		if a.IsScalar() {
			x, y = y, x
		}
		return e.zipScalar("Dot", strided.Mul, x, y, true, opts)
	}
	return one(e, "Dot", func(c *call) (gtensor.Tensor, error) {
		all, t, err := c.floats(x, y)
		if err != nil {
			return nil, err
		}
		dt := all[0].dtype()
		p, shape, err := c.dot(all[0], all[1])
		if err != nil {
			return nil, err
		}
		reuse, incr, _ := options(opts)
		if reuse == nil && incr == nil {
			r, err := c.adopt(p, dt, shape)
			return r.d, err
		}
		c.temps = append(c.temps, p)
		return c.put(operand{strided.Dense(start(p), all[0].Size, shape...), e.tensorAt(uintptr(start(p)), dt, shape)}, t, opts)
	})
}

// dot returns the product, and its shape: the dimensions of x and y except those that are summed
// over.
func (c *call) dot(x, y operand) (*tensor.Tensor, gtensor.Shape, error) {
	a, b := x.Array, y.Array
	if x.d.Shape().IsVector() && y.d.Shape().IsVector() {
		p, err := c.inner(x, y)
		return p, gtensor.Shape{}, err
	}
	// A matrix with one column or row counts as a vector if the other operand is a matrix, and as a
	// matrix if the other operand has more dimensions.
	switch {
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

// flat returns an array as a matrix. It is copied, unless it is a matrix or dense.
func (c *call) flat(a strided.Array, rows, cols int) (strided.Array, error) {
	if len(a.Dims) == 2 {
		return a, nil
	}
	d, err := c.dense(a)
	return strided.Dense(d.Ptr, d.Size, rows, cols), err
}

// put copies a result into the tensor of WithReuse, or adds it to the tensor of WithIncr. The
// tensor gets the result's shape, unless it has one element.
func (c *call) put(x operand, t strided.Type, opts []gtensor.FuncOpt) (gtensor.Tensor, error) {
	to, err := c.target(x.dtype(), x, opts, true)
	if err != nil {
		return nil, err
	}
	if x.Len() == 1 {
		to.reshape = nil
	}
	if to.increment {
		return to.done(c, c.e.kernels.Zip(strided.Add, t, to.into, strided.Operand{Array: to.into}, strided.Operand{Array: x.Array}, false))
	}
	return to.done(c, c.e.kernels.Copy(to.into, x.Array))
}
