package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// A step that is captured reads what changes from step to step, rates and what follows from the number of steps, from device memory: a row of
// Scalars for each parameter. An eager step has them among its arguments, and the kernels compute with the same numbers.

// The numbers of a row.
const (
	sgdRow     = 3 // LR, Momentum, and 1 if it is the first
	adamRow    = 6 // for the host LR, Beta1, StepSize, Correction; for GPUs the last two and what LR shrinks to, and 1-Beta1
	rmspropRow = 2 // LR, Momentum
	adagradRow = 1 // the rate
)

// liveRow is where a parameter's numbers are; the zero liveRow is nowhere.
type liveRow struct {
	numbers *Tensor
	row     int
}

// rows is the memory of n rows from this one on.
func (r liveRow) rows(n, width int) device.Range {
	if r.numbers == nil {
		return device.Range{}
	}
	const size = 8
	return device.Range{Ptr: r.numbers.ptr() + device.Ptr(r.row*width*size), Bytes: int64(n * width * size)}
}

// liveRows makes rows for the updates if the step of any of them changes. set sets the i-th row for the next replay.
func liveRows(ctx context.Context, c *Capture, n, width int, changes func(i int) bool, set func(i int, to []float64) error, row func(i int) *liveRow) error {
	any := false
	for i := range n {
		any = any || changes(i)
	}
	if !any {
		return nil
	}
	numbers, err := Scalars(ctx, c, n*width, func(to []float64) error {
		for i := range n {
			if err := set(i, to[i*width:][:width]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range n {
		*row(i) = liveRow{numbers, i}
	}
	return nil
}

// nexts are the functions of updates, which are the caller's; the step of one without is what it was.
func nexts[U, S any](updates []U, next func(U) (func() S, S)) (all []func() S, changes func(i int) bool) {
	changing := make([]bool, len(updates))
	for i, u := range updates {
		f, same := next(u)
		if changing[i] = f != nil; f == nil {
			f = func() S { return same }
		}
		all = append(all, f)
	}
	return all, func(i int) bool { return changing[i] }
}

func liveSGD(ctx context.Context, c *Capture, updates []SGDUpdate, all []sgdUpdate) error {
	next, changes := nexts(updates, func(u SGDUpdate) (func() SGDStep, SGDStep) { return u.Next, u.SGDStep })
	buffered := make([]bool, len(all))
	for i, u := range all {
		buffered[i] = u.buf != nil
	}
	return liveRows(ctx, c, len(all), sgdRow, changes, func(i int, to []float64) error {
		s := next[i]()
		to[0], to[1], to[2] = s.LR, s.Momentum, 0
		if s.First {
			to[2] = 1
		}
		return sameBuffer("SGD", s.Momentum, buffered[i])
	}, func(i int) *liveRow { return &all[i].live })
}

// sameBuffer is an error for a momentum that is 0, or is not, other than in the capture.
func sameBuffer(optimizer string, momentum float64, buffered bool) error {
	if (momentum != 0) != buffered {
		return fmt.Errorf("tensor: Step%s: %w: momentum %v: a step with momentum is not one without: capture it anew", optimizer, ErrInvalid, momentum)
	}
	return nil
}

func liveAdam(ctx context.Context, c *Capture, updates []AdamUpdate, all []adamUpdate) error {
	next, changes := nexts(updates, func(u AdamUpdate) (func() AdamStep, AdamStep) { return u.Next, u.AdamStep })
	return liveRows(ctx, c, len(all), adamRow, changes, func(i int, to []float64) error {
		s := next[i]().kernel()
		to[0], to[1], to[2], to[3], to[4], to[5] = s.LR, s.Beta1, s.StepSize, s.Correction, shrink(s), 1-s.Beta1
		return nil
	}, func(i int) *liveRow { return &all[i].live })
}

func liveRMSprop(ctx context.Context, c *Capture, updates []RMSpropUpdate, all []rmspropUpdate) error {
	next, changes := nexts(updates, func(u RMSpropUpdate) (func() RMSpropStep, RMSpropStep) { return u.Next, u.RMSpropStep })
	buffered := make([]bool, len(all))
	for i, u := range all {
		buffered[i] = u.buf != nil
	}
	return liveRows(ctx, c, len(all), rmspropRow, changes, func(i int, to []float64) error {
		s := next[i]()
		to[0], to[1] = s.LR, s.Momentum
		return sameBuffer("RMSprop", s.Momentum, buffered[i])
	}, func(i int) *liveRow { return &all[i].live })
}

func liveAdagrad(ctx context.Context, c *Capture, updates []AdagradUpdate, all []adagradUpdate) error {
	next, changes := nexts(updates, func(u AdagradUpdate) (func() AdagradStep, AdagradStep) { return u.Next, u.AdagradStep })
	return liveRows(ctx, c, len(all), adagradRow, changes, func(i int, to []float64) error {
		to[0] = next[i]().rate()
		return nil
	}, func(i int) *liveRow { return &all[i].live })
}
