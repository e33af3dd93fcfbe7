package tensor

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// elements is the number of elements of a shape without negative dimensions. No dimensions: a scalar, 1.
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

// broadcastShape is the shape that a and b broadcast to after NumPy's rules: aligned at the last dimension,
// equal or one of them 1. It may be one of them, not to be written.
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

// covers reports whether b, of as many dimensions, broadcasts to a.
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

// wantRank checks that t has the given number of dimensions.
func wantRank(op string, t *Tensor, rank int) error {
	if len(t.shape) != rank {
		return fmt.Errorf("tensor: %s: %w %v: want %d dimensions", op, ErrShape, t.shape, rank)
	}
	return nil
}

func sameShape(op string, a, b *Tensor) error {
	if !slices.Equal(a.shape, b.shape) {
		return fmt.Errorf("tensor: %s: %w: %v and %v: want equal shapes", op, ErrShape, a.shape, b.shape)
	}
	return nil
}
