package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// Squeeze returns x without those of the given dimensions that are 1, in the same memory
// (torch.squeeze). If none is given, it removes all dimensions of 1.
func (t *Tape) Squeeze(x *Variable, axes ...int) *Variable {
	if x.Tensor() == nil {
		return t.Reshape(x) // which refuses it
	}
	shape := x.Shape()
	drop := make([]bool, len(shape))
	for _, a := range axes {
		if a < 0 {
			a += len(shape)
		}
		if a < 0 || a >= len(shape) {
			t.fail("Squeeze", fmt.Errorf("%w: %v has no dimension %v", tensor.ErrShape, shape, axes))
			return t.inert()
		}
		drop[a] = true
	}
	var kept []int
	for i, d := range shape {
		if d != 1 || len(axes) > 0 && !drop[i] {
			kept = append(kept, d)
		}
	}
	return t.Reshape(x, kept...)
}

// Flatten returns x with the dimensions first to last as one, in the same memory (torch.flatten);
// negative ones count from the end. A scalar becomes one element.
func (t *Tape) Flatten(x *Variable, first, last int) *Variable {
	shape := x.Shape()
	if len(shape) == 0 {
		return t.Reshape(x, 1)
	}
	from, to := first, last
	if from < 0 {
		from += len(shape)
	}
	if to < 0 {
		to += len(shape)
	}
	if from < 0 || to >= len(shape) || from > to {
		t.fail("Flatten", fmt.Errorf("%w: %v has no dimensions %d to %d", tensor.ErrShape, shape, first, last))
		return t.inert()
	}
	return t.Reshape(x, slices.Concat(shape[:from], tensor.Shape{elements(shape[from : to+1])}, shape[to+1:])...)
}

// Split returns the parts of x along a dimension that have the given sizes (torch.split). A single
// size is that of every part, except that the last one may be smaller. After an error it returns an
// inert variable for each size given.
func (t *Tape) Split(x *Variable, axis int, sizes ...int) []*Variable {
	n, ok := t.dimension("Split", x, axis)
	if !ok {
		return t.inertParts(len(sizes))
	}
	if len(sizes) == 1 && sizes[0] > 0 {
		size := sizes[0]
		sizes = nil
		for at := 0; at < n || at == 0; at += size {
			sizes = append(sizes, min(size, n-at))
		}
	}
	sum := 0
	for _, s := range sizes {
		sum += s
	}
	if sum != n || slices.ContainsFunc(sizes, func(s int) bool { return s < 0 }) {
		t.fail("Split", fmt.Errorf("%w: parts of %v along dimension %d of %v: want them to add up to %d", tensor.ErrShape, sizes, axis, x.Shape(), n))
		return t.inertParts(len(sizes))
	}
	last := x.last
	x.last = 0 // no part is the last reader
	parts := make([]*Variable, len(sizes))
	at := 0
	for i, s := range sizes {
		parts[i] = t.Narrow(x, axis, at, s)
		at += s
	}
	x.last = last
	t.endHolds("Split", []*Variable{x})
	return parts
}

// inertParts returns n inert variables, but at most 1024: after an error nothing bounds n.
func (t *Tape) inertParts(n int) []*Variable {
	return slices.Repeat([]*Variable{t.inert()}, min(max(n, 0), 1024))
}

// Chunk returns x in at most parts parts along a dimension, of one size except for the last
// (torch.chunk). After an error it returns as many inert variables.
func (t *Tape) Chunk(x *Variable, axis, parts int) []*Variable {
	n, ok := t.dimension("Chunk", x, axis)
	if !ok {
		return t.inertParts(parts)
	}
	if parts < 1 {
		t.fail("Chunk", fmt.Errorf("%w: %d parts: want at least one", ErrInvalid, parts))
		return nil
	}
	if n == 0 {
		return t.Split(x, axis, make([]int, parts)...)
	}
	return t.Split(x, axis, 1+(n-1)/parts)
}

// dimension returns the size of a dimension of x.
func (t *Tape) dimension(op string, x *Variable, axis int) (int, bool) {
	if !t.begin(op, x) {
		return 0, false
	}
	shape, i := x.Shape(), axis
	if i < 0 {
		i += len(shape)
	}
	if i < 0 || i >= len(shape) {
		t.fail(op, fmt.Errorf("%w: %v has no dimension %d", tensor.ErrShape, shape, axis))
		return 0, false
	}
	return shape[i], true
}
