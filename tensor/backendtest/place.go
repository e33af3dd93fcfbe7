package backendtest

import (
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func placeOps[T kernel.Float]() []operation[T] {
	return []operation[T]{{"Permute", permuteTrial[T]}, {"Narrow", narrowTrial[T]}, {"Pad", padTrial[T]}, {"Cat", catTrial[T]}}
}

func permuteTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.shape()...)
	dims := c.rand.Perm(len(x.Shape()))
	given := slices.Clone(dims)
	for i := range given {
		if c.rand.IntN(3) == 0 {
			given[i] -= len(dims)
		}
	}
	c.dirty()
	y, err := c.r.Permute(c.ctx, x.Tensor, given...)
	c.gave("Permute", y, err, reference.Permute(x.array(), dims), exact)
	x.unchanged("Permute")
	if len(dims) > 1 {
		given[0] = dims[1]
		y, err = c.r.Permute(c.ctx, x.Tensor, given...)
		c.refused("Permute with a dimension twice", y, err, tensor.ErrShape)
	}
}

func narrowTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.ranked()...)
	axis := c.rand.IntN(len(x.Shape()))
	size := x.Shape()[axis]
	start := c.rand.IntN(size + 1)
	length := c.rand.IntN(size - start + 1)
	before, after := make([]int, len(x.Shape())), make([]int, len(x.Shape()))
	before[axis], after[axis] = -start, start+length-size
	c.dirty()
	y, err := c.r.Narrow(c.ctx, x.Tensor, axis-c.rand.IntN(2)*len(x.Shape()), start, length)
	c.gave("Narrow", y, err, reference.Pad(x.array(), 0, before, after), exact)
	x.unchanged("Narrow")
	for _, wrong := range [][2]int{{start, size - start + 1}, {-1, 1}, {start, -1}, {size + 1, 0}} {
		y, err = c.r.Narrow(c.ctx, x.Tensor, axis, wrong[0], wrong[1])
		c.refused("Narrow beyond the end", y, err, tensor.ErrShape)
	}
}

func padTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.shape()...)
	before, after := make([]int, len(x.Shape())), make([]int, len(x.Shape()))
	for i, d := range x.Shape() {
		before[i], after[i] = c.rand.IntN(3), c.rand.IntN(3)
		if c.rand.IntN(4) == 0 {
			before[i] = -c.rand.IntN(d + 1)
		}
		if c.rand.IntN(4) == 0 {
			after[i] = -c.rand.IntN(d + min(0, before[i]) + 1)
		}
	}
	if one := c.rand.IntN(3 + len(before)); one < len(before) { // a GPU does this in one launch
		n := [2]int{c.rand.IntN(3), c.rand.IntN(3)}
		clear(before)
		clear(after)
		before[one], after[one] = n[0], n[1]
	}
	value := float64(c.number())
	c.dirty()
	y, err := c.r.Pad(c.ctx, x.Tensor, value, before, after)
	c.gave("Pad", y, err, reference.Pad(x.array(), value, before, after), exact)
	x.unchanged("Pad")
	if len(before) > 0 {
		before[0] = -x.Shape()[0] - 1
		y, err = c.r.Pad(c.ctx, x.Tensor, value, before, after)
		c.refused("Pad that takes away too much", y, err, tensor.ErrShape)
	}
}

func catTrial[T kernel.Float](c *trial[T]) {
	shape := c.ranked()
	axis := c.rand.IntN(len(shape))
	var parts []*tensor.Tensor
	var arrays []reference.Array
	var operands []*operand[T]
	for range 1 + c.rand.IntN(4) {
		s := slices.Clone(shape)
		s[axis] = c.rand.IntN(4)
		x := c.operand(s...)
		parts, arrays, operands = append(parts, x.Tensor), append(arrays, x.array()), append(operands, x)
	}
	c.dirty()
	y, err := c.r.Cat(c.ctx, axis-c.rand.IntN(2)*len(shape), parts...)
	c.gave("Cat", y, err, reference.Cat(axis, arrays), exact)
	for _, x := range operands {
		x.unchanged("Cat")
	}
	shape[axis]++
	other := (axis + 1) % len(shape)
	if other != axis {
		shape[other]++
		y, err = c.r.Cat(c.ctx, axis, parts[0], c.operand(shape...).Tensor)
		c.refused("Cat of other shapes", y, err, tensor.ErrShape)
	}
	_, err = c.r.Cat(c.ctx, axis)
	require.ErrorIs(c.t, err, tensor.ErrInvalid)
}
