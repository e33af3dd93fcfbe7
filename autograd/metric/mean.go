package metric

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Mean is a mean over all rows of an epoch: of losses, or of hits (the accuracy).
type Mean struct{ sums }

// NewMean makes a mean of no rows. ignore are labels that do not count (ignore_index): pass -100 if
// rows have that label, because cross entropies leave it out by default. Err and each use return
// its error.
func NewMean(ctx context.Context, rt *tensor.Runtime, ignore ...int) *Mean {
	return &Mean{newSums(ctx, "NewMean", rt, ignore, 2)}
}

// Add adds a loss of one element, which is the mean over the labels that count, or over all
// elements of a target. A batch is weighted by its number of these labels or elements. A loss
// over none adds nothing. An error sticks to the tape.
func (m *Mean) Add(t *autograd.Tape, loss *autograd.Variable, target autograd.Target) {
	m.add(t, "Mean.Add", func(c *autograd.Tape) *autograd.Variable {
		x, labels := loss.Value(), tensorOf(target)
		if x.Released() || labels.Released() || x.Elements() != 1 {
			return c.Fail(fmt.Errorf("%w: a loss %v and labels %v: want a loss of one element, and labels", tensor.ErrShape, x, labels))
		}
		n := m.rows(c, labels).Keep()
		sum := c.Mul(c.Reshape(c.Cast(c.Input(x), tensor.Float64), 1), n)
		return c.Cat(0, m.unlessNone(c, sum, n), n)
	})
}

// AddHits counts the rows of logits (n, classes, …) in which the logit of the row's label is the
// greatest. Labels are (n, …), int32 or int64. The mean is the accuracy. Of equal logits the first
// one counts, and NaN is the greatest. An error sticks to the tape.
func (m *Mean) AddHits(t *autograd.Tape, logits *autograd.Variable, target autograd.Target) {
	m.add(t, "Mean.AddHits", func(c *autograd.Tape) *autograd.Variable {
		labels := tensorOf(target)
		found := best(c, logits, labels)
		if found == nil {
			return c.Fail(nil)
		}
		hits := c.Cast(c.Equal(whole(c, found), whole(c, labels)), tensor.Float64)
		if each := m.counted(c, labels); each != nil {
			hits = c.Mul(hits, each)
		}
		return c.Cat(0, c.Reshape(c.Sum(hits), 1), m.rows(c, labels))
	})
}

// rows returns the number of the labels that count, (1).
func (m *Mean) rows(c *autograd.Tape, labels *tensor.Tensor) *autograd.Variable {
	if each := m.counted(c, labels); each != nil {
		return c.Reshape(c.Sum(each), 1)
	}
	return constant(c, float64(labels.Elements()), tensor.Float64)
}

// unlessNone returns sum, or 0 if n is 0, because the loss, a mean over no rows, is NaN then.
func (m *Mean) unlessNone(c *autograd.Tape, sum, n *autograd.Variable) *autograd.Variable {
	none := constant(c, 0, tensor.Float64).Keep()
	return c.Where(c.Greater(n, none), sum, none)
}

// Value waits for the device and returns the mean; that of no rows is NaN.
func (m *Mean) Value(ctx context.Context) (float64, error) {
	s, err := m.read(ctx)
	if err != nil {
		return math.NaN(), fmt.Errorf("metric: Mean.Value: %w", err)
	}
	return s[0] / s[1], nil
}

// Perplexity returns exp of Value, for losses that are cross entropies.
func (m *Mean) Perplexity(ctx context.Context) (float64, error) {
	v, err := m.Value(ctx)
	return math.Exp(v), err
}
