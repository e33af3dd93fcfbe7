package compose

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/device"
)

// check compares a trial with its plain training.
func check(machines []*machine, tr *trial) error {
	want, err := tr.plain(machines)
	if err != nil {
		return err
	}
	return tr.against(want, machines)
}

// plain is the training without features, of each rank if these have batches of their own.
func (tr *trial) plain(machines []*machine) ([]*run, error) {
	o := tr.options & training
	if o.has(batches) {
		o |= ranks
	}
	runs, err := tr.with(o).on(machines)
	if err != nil {
		err = fmt.Errorf("the plain training: %w", err)
	}
	return runs, err
}

// against compares the trial with its plain training.
func (tr *trial) against(want []*run, machines []*machine) error {
	got, err := tr.on(machines)
	if err != nil {
		return err
	}
	tr.moved = got[0].statistics
	for i, r := range got {
		if err := errors.Join(differ(want[min(i, len(want)-1)], r), r.machine.left()); err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
	}
	return tr.excess(want[0], got[0])
}

// on trains on one machine, or on two.
func (tr *trial) on(machines []*machine) ([]*run, error) {
	if !tr.has(ranks) {
		machines = machines[:1]
	}
	runs := make([]*run, len(machines))
	err := together(machines, func(i int, comm device.Communicator) (err error) {
		runs[i], err = tr.train(context.Background(), machines[i], comm, func(error) bool { return false })
		return err
	})
	return runs, err
}

// excess returns an error if the features have raised the peak. A graph has memory of its own,
// Prepare makes state for parameters that never train, and two tapes at a time hold more than one.
// Features that move or recompute values may hold a few more blocks for a moment.
func (tr *trial) excess(want, got *run) error {
	slack := int64(0)
	switch {
	case tr.steps > 1 && want.peak == 0:
		return errors.New("no peak was measured")
	case tr.options&(capture|prepare|interleave|ranks) != 0:
		return nil
	case tr.options&(checkpoints|offloadActivations|offloadState|offloadParameters) != 0:
		slack = 4 * 512
	}
	if got.peak > want.peak+slack {
		return fmt.Errorf("the peak is %d bytes, and %d without features", got.peak, want.peak)
	}
	return nil
}

// differ returns an error if the observations of the trainings differ.
func differ(want, got *run) error {
	i := 0
	for _, w := range want.seen {
		if i == len(got.seen) || got.seen[i].what != w.what {
			if !w.sometimes {
				return fmt.Errorf("%s is missing", w.what)
			}
			continue
		}
		g := got.seen[i].bits
		if len(g) != len(w.bits) {
			return fmt.Errorf("%s has %d bytes, want %d", w.what, len(g), len(w.bits))
		}
		for j := 0; j+4 <= len(g); j += 4 {
			if was, is := binary.NativeEndian.Uint32(w.bits[j:]), binary.NativeEndian.Uint32(g[j:]); is != was {
				if got.has(ranks) && overflows(was, is) {
					return nil // and all that follows from it differs
				}
				return fmt.Errorf("%s: number %d is %v, want %v (bits %x, want %x)", w.what, j/4, math.Float32frombits(is), math.Float32frombits(was), is, was)
			}
		}
		i++
	}
	if i < len(got.seen) {
		return fmt.Errorf("%s is not there in the plain training", got.seen[i].what)
	}
	return nil
}

// overflows reports whether two ranks add a finite number to itself and get an infinite one. This
// happens in a training that diverges, because ranks divide after the addition.
func overflows(was, is uint32) bool {
	w, g := float64(math.Float32frombits(was)), float64(math.Float32frombits(is))
	return math.Abs(w) > math.MaxFloat32/2 && !math.IsInf(w, 0) && math.IsInf(g, 0)
}
