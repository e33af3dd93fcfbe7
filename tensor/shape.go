package tensor

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// elements returns the number of elements of a shape without negative dimensions; 1 for a scalar.
func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// byteSize checks the dtype and shape of a tensor, and returns its size.
func byteSize(op string, dtype Dtype, shape []int) (int64, error) {
	if err := checkDtype(op, dtype); err != nil {
		return 0, err
	}
	n, size := int64(1), int64(dtype.Size())
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("tensor: %s: %w %v: dimensions must not be negative", op, ErrShape, Shape(slices.Clone(shape)))
		}
		if d > 0 && n > min(math.MaxInt64/size, math.MaxInt)/int64(d) {
			return 0, fmt.Errorf("tensor: %s: %w %v: its size overflows %d bits", op, ErrShape, Shape(slices.Clone(shape)), bits.UintSize-1)
		}
		n *= int64(d)
	}
	return n * size, nil
}

// broadcastShape returns the shape that a and b broadcast to after NumPy's rules: dimensions are
// aligned at the last one, and are equal or one of them is 1. The result may be a or b, so it must
// not be written.
func broadcastShape(op string, a, b Shape) (Shape, error) {
	if slices.Equal(a, b) {
		return slices.Clip(a), nil
	}
	long, short := a, b
	if len(b) > len(a) {
		long, short = b, a
	}
	lead := len(long) - len(short)
	if covers(long[lead:], short) {
		return slices.Clip(long), nil
	}
	out := slices.Clone(long)
	for i, d := range short {
		switch e := out[lead+i]; {
		case d == e || d == 1:
		case e == 1:
			out[lead+i] = d
		default:
			return nil, fmt.Errorf("tensor: %s: %w: %v and %v do not broadcast: dimensions %d and %d, counted from the end, must be equal or 1",
				op, ErrShape, slices.Clone(a), slices.Clone(b), e, d)
		}
	}
	return out, nil
}

// covers reports whether b broadcasts to a. Both have the same number of dimensions.
func covers(a, b Shape) bool {
	for i, d := range b {
		if d != 1 && d != a[i] {
			return false
		}
	}
	return true
}

// axisOf turns an axis, counted from the end if negative, into an index.
func axisOf(op string, shape Shape, axis int) (int, error) {
	i := axis
	if i < 0 {
		i += len(shape)
	}
	if i < 0 || i >= len(shape) {
		return 0, fmt.Errorf("tensor: %s: %w %v has no axis %d: want %d..%d", op, ErrShape, shape, axis, -len(shape), len(shape)-1)
	}
	return i, nil
}

var oneElement = Shape{1}

// atLeast1d returns the shape, or that of one element for a scalar, which has the axes 0 and -1 in
// PyTorch.
func atLeast1d(shape Shape) Shape {
	if len(shape) == 0 {
		return oneElement
	}
	return shape
}

// reducedShape returns shape with the axes as 1, and without them. No axes means all.
func reducedShape(op string, shape Shape, axes []int) (kept, without Shape, err error) {
	kept = slices.Clone(shape)
	drop := make([]bool, len(atLeast1d(shape)))
	for _, a := range axes {
		i, err := axisOf(op, atLeast1d(shape), a)
		if err != nil {
			return nil, nil, err
		}
		if drop[i] {
			return nil, nil, fmt.Errorf("tensor: %s: %w: axis %d of %v is given twice", op, ErrShape, a, shape)
		}
		drop[i] = true
	}
	without = Shape{}
	for i, d := range shape {
		if drop[i] || len(axes) == 0 {
			kept[i] = 1
		} else {
			without = append(without, d)
		}
	}
	return kept, without, nil
}

// rowsOf returns the vectors of a shape along one axis, by default the last.
func rowsOf(op string, shape Shape, axis []int) (r plan.Rows, err error) {
	shape = atLeast1d(shape)
	at := len(shape) - 1
	switch {
	case len(axis) > 1:
		err = fmt.Errorf("tensor: %s: %w: axes %v: want one, or none for the last", op, ErrInvalid, slices.Clone(axis))
	case len(axis) == 1:
		at, err = axisOf(op, shape, axis[0])
	}
	if err != nil {
		return r, err
	}
	return plan.Rows{Cols: shape[at], Inner: elements(shape[at+1:])}, nil
}

func broadcastsTo(op string, from, to Shape) error {
	out, err := broadcastShape(op, from, to)
	if err != nil {
		return err
	}
	if !slices.Equal(out, to) {
		return fmt.Errorf("tensor: %s: %w: %v does not broadcast to %v", op, ErrShape, slices.Clone(from), slices.Clone(to))
	}
	return nil
}
