package metric

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Confusion counts the rows of each class by the class that a classifier predicts.
type Confusion struct {
	sums    // (classes+1, classes): the last row is for labels outside of the classes
	classes *tensor.Tensor
}

// NewConfusion makes a matrix of zeros, which takes classes*(classes+1) float64 of device memory.
// ignore are labels that do not count. Err and each use return its error.
func NewConfusion(ctx context.Context, rt *tensor.Runtime, classes int, ignore ...int) *Confusion {
	const call = "NewConfusion"
	if classes < 1 {
		return &Confusion{sums: sums{err: fmt.Errorf("metric: %s: %w: %d classes: want at least 1", call, autograd.ErrInvalid, classes)}}
	}
	m := &Confusion{sums: newSums(ctx, call, rt, ignore, classes+1, classes)}
	if m.err == nil {
		numbers := make([]float32, classes)
		for i := range numbers {
			numbers[i] = float32(i)
		}
		if m.classes, m.err = tensor.FromSlice(tensor.Detached(ctx), rt, numbers); m.err != nil {
			m.err = errors.Join(fmt.Errorf("metric: %s: %w", call, m.err), m.sums.Close())
		}
	}
	return m
}

// Close frees the memory. It is idempotent.
func (m *Confusion) Close() error { return errors.Join(m.sums.Close(), m.classes.Release()) }

// Add adds the rows of logits (n, classes, …) with their labels (n, …), int32 or int64; see
// [Mean.AddHits]. A label outside of the classes is an error of Value. Add takes several times the
// memory of the logits. An error sticks to the tape.
func (m *Confusion) Add(t *autograd.Tape, logits *autograd.Variable, target autograd.Target) {
	m.add(t, "Confusion.Add", func(c *autograd.Tape) *autograd.Variable {
		labels := tensorOf(target)
		found := best(c, logits, labels)
		if found == nil {
			return c.Fail(nil)
		}
		n, classes := found.Elements(), m.classes.Elements()
		if shape := logits.Shape(); shape[min(1, len(shape)-1)] != classes {
			return c.Fail(fmt.Errorf("%w: logits %v for %d classes", tensor.ErrShape, shape, classes))
		}
		right := m.oneHot(c, labels, n).Keep()
		// 1 for a label outside of the classes, unless it does not count
		other := c.AddScalar(c.Neg(c.Sum(right, 1)), 1)
		if each := m.counted(c, labels); each != nil {
			each = c.Cast(c.Reshape(each, n), tensor.Float32)
			right, other = c.Mul(right, c.Reshape(each.Keep(), n, 1)), c.Mul(other, each)
		}
		rows := c.Cat(1, right, c.Reshape(other, n, 1))
		return c.Cast(c.MatMul(rows, m.oneHot(c, found, n), tensor.TransA), tensor.Float64)
	})
}

// oneHot returns (n, classes) of float32, with a 1 in the column of each row's class.
func (m *Confusion) oneHot(c *autograd.Tape, x *tensor.Tensor, n int) *autograd.Variable {
	column := c.Reshape(c.Cast(c.Input(x), tensor.Float32), n, 1)
	return c.Cast(c.Equal(column, c.Input(m.classes)), tensor.Float32)
}

// Matrix has a row for each class of labels, with the number of labels for each predicted class.
type Matrix [][]int

// Accuracy returns the share on the diagonal, or 0 if nothing was counted.
func (m Matrix) Accuracy() float64 {
	right, all := 0, 0
	for i, row := range m {
		right += row[i]
		for _, n := range row {
			all += n
		}
	}
	return float64(right) / float64(max(all, 1))
}

// Value waits for the device and returns the matrix. Labels that are neither classes nor ignored
// are an error that wraps [tensor.ErrLabel], with the matrix of the others.
func (m *Confusion) Value(ctx context.Context) (Matrix, error) {
	s, err := m.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("metric: Confusion.Value: %w", err)
	}
	classes := m.classes.Elements()
	all := make(Matrix, classes+1)
	for i := range all {
		for _, n := range s[i*classes:][:classes] {
			all[i] = append(all[i], int(n))
		}
	}
	others := 0
	for _, n := range all[classes] {
		others += n
	}
	if others > 0 {
		err = fmt.Errorf("metric: Confusion.Value: %w: %d labels are outside of [0, %d)", tensor.ErrLabel, others, classes)
	}
	return all[:classes], err
}
