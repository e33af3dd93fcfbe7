package optim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// Record is the data of an optimiser in a checkpoint, without the tensors of its state.
type Record struct {
	Kind    string
	Groups  []GroupRecord
	Steps   []int // of each parameter
	Tensors []int // number of state tensors of each parameter in the checkpoint
}

// GroupRecord is the data of a [Group] in a checkpoint.
type GroupRecord struct {
	Parameters   int
	LR, Momentum float64
}

// Record returns the data for a checkpoint. State that no step has written is left out.
func (s *Base) Record() Record {
	r := Record{Kind: s.kind, Steps: slices.Clone(s.steps)}
	for _, g := range s.groups {
		r.Groups = append(r.Groups, GroupRecord{len(g.params), g.lr, g.momentum})
	}
	for i, ts := range s.state {
		n := len(ts)
		if !s.filled[i] {
			n = 0 // the state has its initial values
		}
		r.Tensors = append(r.Tensors, n)
	}
	return r
}

// Slots returns all slots of the i-th parameter, including one that the momentum does not need now.
func (s *Base) Slots(i int) []Slot {
	slots, _ := s.slots(i)
	return slots
}

// State returns the state tensors of the i-th parameter, for the first of its slots. They belong to
// the optimiser.
func (s *Base) State(i int) []*tensor.Tensor { return s.state[i] }

// WithState calls f while the state of the i-th parameter is on the device; see [Base.SetStage].
func (s *Base) WithState(ctx context.Context, i int, f func() error) error {
	if err := check.Context("optim: WithState", ctx); err != nil {
		return err
	}
	if f == nil || i < 0 || i >= len(s.params) {
		return fmt.Errorf("optim: WithState: %w: the function is nil, or there is no parameter %d of %d", autograd.ErrInvalid, i, len(s.params))
	}
	if err := s.fetch(ctx, []int{i}); err != nil {
		return err
	}
	return errors.Join(f(), s.park(ctx, []int{i}))
}

// CheckRecord returns an error that wraps [autograd.ErrInvalid] if the record does not fit the
// optimiser.
func (s *Base) CheckRecord(r Record) error {
	if r.Kind != s.kind || len(r.Groups) != len(s.groups) || len(r.Steps) != len(s.params) || len(r.Tensors) != len(s.params) {
		return fmt.Errorf("%w: the checkpoint's optimiser is %s of %d groups with %d parameters, and this one %s of %d groups with %d",
			autograd.ErrInvalid, r.Kind, len(r.Groups), len(r.Steps), s.kind, len(s.groups), len(s.params))
	}
	for i, g := range s.groups {
		was := r.Groups[i]
		if was.Parameters != len(g.params) {
			return fmt.Errorf("%w: group %d of the checkpoint's optimiser has %d parameters, and this one's %d", autograd.ErrInvalid, i, was.Parameters, len(g.params))
		}
		if err := errors.Join(checkLR(was.LR), within("SetMomentum", "the momentum", was.Momentum, 0, g.greatest)); err != nil {
			return err
		}
	}
	for i, n := range r.Tensors {
		if n < 0 || n > len(s.Slots(i)) || r.Steps[i] < 0 {
			return fmt.Errorf("%w: parameter %q has %d tensors of state after %d steps", autograd.ErrInvalid, s.params[i].Name, n, r.Steps[i])
		}
	}
	return nil
}

// Restore sets the optimiser to a record that CheckRecord accepts, and allocates its state tensors.
// The caller must then write their elements.
func (s *Base) Restore(ctx context.Context, r Record) error {
	if err := check.Context("optim: Restore", ctx); err != nil {
		return err
	}
	if err := s.CheckRecord(r); err != nil {
		return err
	}
	ctx = tensor.Detached(ctx)
	for i, n := range r.Tensors {
		for len(s.state[i]) > n {
			last := len(s.state[i]) - 1
			err := s.state[i][last].ReleaseContext(ctx)
			s.state[i] = s.state[i][:last]
			if err != nil {
				return err
			}
		}
		for k := len(s.state[i]); k < n; k++ {
			t, err := s.Slots(i)[k].first(ctx, s.rt, s.params[i].Parameter)
			if err != nil {
				return fmt.Errorf("state of parameter %q: %w", s.params[i].Name, err)
			}
			s.state[i] = append(s.state[i], t)
		}
		if err := s.park(ctx, []int{i}); err != nil {
			return err
		}
		s.steps[i], s.filled[i] = r.Steps[i], n > 0
	}
	for i, g := range s.groups {
		g.lr, g.momentum = r.Groups[i].LR, r.Groups[i].Momentum
	}
	return nil
}
