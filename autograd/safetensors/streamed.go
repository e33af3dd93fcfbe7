package safetensors

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/tensor"
)

// Streamed is a tensor that is made while the file is written, such as one of several ranks' parts,
// so that not all of them are in memory at once.
type Streamed struct {
	Name  string
	Dtype tensor.Dtype
	Shape tensor.Shape
	// Write writes the tensor's bytes to w, as [tensor.WriteBytes] does. It is called when all
	// tensors before it, in the order of the file, have been written. Writing another number of
	// bytes than Dtype and Shape have is an error that wraps [ErrInvalid].
	Write func(ctx context.Context, w io.Writer) error
}

// SortStreamed sorts tensors in the order in which [Write] calls their functions.
func SortStreamed(tensors []Streamed) {
	slices.SortStableFunc(tensors, func(a, b Streamed) int { return before(a.Dtype, a.Name, b.Dtype, b.Name) })
}

// before compares the positions of two tensors in a file.
func before(a tensor.Dtype, nameA string, b tensor.Dtype, nameB string) int {
	if d := rank(nameOf(b)) - rank(nameOf(a)); d != 0 {
		return d
	}
	return strings.Compare(nameA, nameB)
}

// entry is a tensor of a file.
type entry struct {
	name  string
	dtype tensor.Dtype
	shape tensor.Shape
	bytes int64
	write func(context.Context, io.Writer) error
	err   error // why it can't be written
}

func entries(tensors []Named, streamed []Streamed) (all []entry) {
	for _, t := range tensors {
		e := entry{name: t.Name}
		if t.Released() {
			e.err = fmt.Errorf("%w: the tensor is nil or was released", ErrInvalid)
		} else {
			e.dtype, e.shape, e.bytes = t.Dtype(), t.Shape(), t.Bytes()
			e.write = func(ctx context.Context, w io.Writer) error { return tensor.WriteBytes(ctx, t.Tensor, w) }
		}
		all = append(all, e)
	}
	for _, s := range streamed {
		all = append(all, s.entry())
	}
	return all
}

func (s Streamed) entry() entry {
	e := entry{name: s.Name, dtype: s.Dtype, shape: s.Shape}
	if s.Write == nil {
		e.err = fmt.Errorf("%w: Streamed.Write is nil", ErrInvalid)
		return e
	}
	if nameOf(s.Dtype) == "" {
		return e // which the layout refuses
	}
	e.bytes = int64(s.Dtype.Size())
	for _, n := range s.Shape {
		if n < 0 || n > 0 && e.bytes > math.MaxInt64/int64(n) {
			e.err = fmt.Errorf("%w: a shape of %v", ErrInvalid, s.Shape)
			return e
		}
		e.bytes *= int64(n)
	}
	e.write = func(ctx context.Context, w io.Writer) error {
		c := &counter{w: w, left: e.bytes}
		if err := s.Write(ctx, c); err != nil {
			return err
		}
		if c.left != 0 {
			return fmt.Errorf("%w: Streamed.Write has written %d bytes, and %v %v has %d", ErrInvalid, e.bytes-c.left, s.Dtype, s.Shape, e.bytes)
		}
		return nil
	}
	return e
}

// counter is a writer that accepts at most left bytes.
type counter struct {
	w    io.Writer
	left int64
}

func (c *counter) Write(p []byte) (int, error) {
	if int64(len(p)) > c.left {
		return 0, fmt.Errorf("%w: Streamed.Write writes more bytes than its shape has", ErrInvalid)
	}
	n, err := c.w.Write(p)
	c.left -= int64(n)
	return n, err
}
