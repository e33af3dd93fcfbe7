package nn

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Lengths are the lengths of the rows of a batch of padded sequences, for the RunPadded of
// recurrent layers (torch.nn.utils.rnn.pack_padded_sequence). They take 2*steps*batch + batch
// numbers of 4 bytes in device memory, and belong to the caller, until Release.
type Lengths struct {
	rt           *tensor.Runtime
	steps, batch int
	// numbers are three int32 lists: for each step and row 1 up to the row's end and 0 after it;
	// then for each step and row the index of the element that reversing the row puts there, where
	// steps after the end stay; then for each row the index of its last step. The index
	// step*batch+row is that of a row of the states (steps*batch, n).
	numbers *tensor.Tensor
}

// NewLengths makes the lengths of the rows of a batch, each from 1 to steps.
func NewLengths(ctx context.Context, rt *tensor.Runtime, steps int, lengths ...int) (*Lengths, error) {
	l := &Lengths{rt: rt, steps: steps, batch: len(lengths)}
	numbers, err := l.places(lengths)
	if err != nil {
		return nil, fmt.Errorf("nn: NewLengths: %w", err)
	}
	l.numbers, err = tensor.FromSlice(memcache.WithCategory(tensor.Detached(ctx), memcache.CategoryInput), rt, numbers)
	if err != nil {
		return nil, fmt.Errorf("nn: NewLengths: %w", err)
	}
	return l, nil
}

// Set overwrites the lengths of the same number of rows in place, so that replays of a captured
// step read the new ones. A tape that has read the old ones must not run its backward pass after
// Set.
func (l *Lengths) Set(ctx context.Context, lengths ...int) error {
	numbers, err := l.places(lengths)
	if err == nil {
		err = tensor.CopyFrom(ctx, l.numbers, numbers)
	}
	if err != nil {
		return fmt.Errorf("nn: Lengths.Set: %w", err)
	}
	return nil
}

// Release frees the memory. A second call does nothing.
func (l *Lengths) Release() error {
	if l == nil {
		return nil
	}
	return l.numbers.Release()
}

func (l *Lengths) places(lengths []int) ([]int32, error) {
	if l == nil || l.rt == nil || len(lengths) == 0 || len(lengths) != l.batch {
		return nil, fmt.Errorf("%w: %d lengths: want a runtime and a length for each row", autograd.ErrInvalid, len(lengths))
	}
	if l.steps < 1 || l.steps > math.MaxInt32/l.batch {
		return nil, fmt.Errorf("%w: %d steps of %d rows: want 1 step at least, and 2^31-1 elements at most", autograd.ErrInvalid, l.steps, l.batch)
	}
	n := l.steps * l.batch
	all := make([]int32, 2*n+l.batch)
	for row, length := range lengths {
		if length < 1 || length > l.steps {
			return nil, fmt.Errorf("%w: row %d has length %d: want 1 to %d", autograd.ErrInvalid, row, length, l.steps)
		}
		for step := range l.steps {
			at, from := step*l.batch+row, step
			if step < length {
				all[at], from = 1, length-1-step
			}
			all[n+at] = int32(from*l.batch + row)
		}
		all[2*n+row] = int32((length-1)*l.batch + row)
	}
	return all, nil
}

// ends is Lengths on a tape.
type ends struct {
	t                           *autograd.Tape
	seen, reversed, last, zeros *autograd.Variable
}

// on brings the lengths to the tape of sequences x, (steps, batch, n).
func (l *Lengths) on(t *autograd.Tape, x *autograd.Variable) *ends {
	e, shape := &ends{t: t}, x.Shape()
	switch {
	case l == nil || l.numbers == nil || l.rt != t.Runtime():
		t.Fail(fmt.Errorf("nn: Lengths: %w: they are nil, not made by NewLengths, or of another runtime than the tape", autograd.ErrInvalid))
	case len(shape) == 3 && (shape[0] != l.steps || shape[1] != l.batch):
		t.Fail(fmt.Errorf("nn: Lengths: %w: %d steps of %d rows for sequences (steps, batch, n) of %v", tensor.ErrShape, l.steps, l.batch, shape))
	}
	if t.Err() != nil {
		return e
	}
	n := l.steps * l.batch
	all := t.Input(l.numbers)
	e.seen = t.Reshape(t.Narrow(all, 0, 0, n), l.steps, l.batch, 1)
	e.reversed, e.last = t.Narrow(all, 0, n, n), t.Narrow(all, 0, 2*n, l.batch)
	zero, err := l.rt.Zeros(t.Context(), x.Tensor().Dtype(), 1)
	t.Fail(err)
	if err == nil {
		e.zeros = t.Input(zero)
		t.Fail(zero.ReleaseContext(t.Context()))
	}
	return e
}

// release ends the use of the lengths.
func (e *ends) release() {
	for _, v := range []*autograd.Variable{e.seen, e.reversed, e.last, e.zeros} {
		v.Release()
	}
}

// masked returns x with zeros after the end of each row.
func (e *ends) masked(x *autograd.Variable) *autograd.Variable {
	return e.t.Frame(func() *autograd.Variable { return e.t.Where(e.seen, x, e.zeros) })
}

// reverse returns x with each row reversed, up to its end.
func (e *ends) reverse(x *autograd.Variable) *autograd.Variable {
	return e.t.Frame(func() *autograd.Variable { return e.t.Reshape(e.take(x, e.reversed), x.Shape()...) })
}

// lastOf returns each row's last element.
func (e *ends) lastOf(x *autograd.Variable) *autograd.Variable {
	return e.t.Frame(func() *autograd.Variable { return e.take(x, e.last) })
}

func (e *ends) take(x, places *autograd.Variable) *autograd.Variable {
	shape := x.Shape()
	if len(shape) != 3 { // there is an error
		return x
	}
	return e.t.IndexSelect(e.t.Reshape(x, shape[0]*shape[1], shape[2]), 0, places)
}
