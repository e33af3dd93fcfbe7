package autograd

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/tensor"
)

// groupRecord and optimizerRecord are what a checkpoint says of an optimiser.
type groupRecord struct {
	Parameters   int
	LR, Momentum float64
}

type optimizerRecord struct {
	Kind    string
	Groups  []groupRecord
	Steps   []int // of each parameter
	Tensors []int // of each parameter's state that the file has
}

func (s *Base) record() optimizerRecord {
	r := optimizerRecord{Kind: s.kind, Steps: s.steps}
	for _, g := range s.groups {
		r.Groups = append(r.Groups, groupRecord{len(g.params), g.lr, g.momentum})
	}
	for i, ts := range s.state {
		n := len(ts)
		if !s.filled[i] {
			n = 0 // as it is made
		}
		r.Tensors = append(r.Tensors, n)
	}
	return r
}

// slotName is the name of a tensor in a checkpoint.
func (s *Base) slotName(i, k int) string {
	slots, _ := s.slots(i)
	return fmt.Sprintf("optimizer.%d.%s", i, slots[k].Name)
}

func (s *Base) named() (all []safetensors.Named) {
	for i, n := range s.record().Tensors {
		for k := range n {
			all = append(all, safetensors.Named{Name: s.slotName(i, k), Tensor: s.state[i][k]})
		}
	}
	return all
}

// check compares the optimiser with a record and the tensors of its file.
func (s *Base) check(r optimizerRecord, f *safetensors.File) error {
	if r.Kind != s.kind || len(r.Groups) != len(s.groups) || len(r.Steps) != len(s.params) || len(r.Tensors) != len(s.params) {
		return fmt.Errorf("%w: the checkpoint's optimiser is %s of %d groups with %d parameters, and this one %s of %d groups with %d",
			ErrState, r.Kind, len(r.Groups), len(r.Steps), s.kind, len(s.groups), len(s.params))
	}
	for i, g := range s.groups {
		was := r.Groups[i]
		if was.Parameters != len(g.params) {
			return fmt.Errorf("%w: group %d of the checkpoint's optimiser has %d parameters, and this one's %d", ErrState, i, was.Parameters, len(g.params))
		}
		if err := checkLR(was.LR); err != nil {
			return err
		}
		if err := within("SetMomentum", "the momentum", was.Momentum, 0, g.greatest); err != nil {
			return err
		}
	}
	known := 0
	for i, n := range r.Tensors {
		if slots, _ := s.slots(i); n < 0 || n > len(slots) || r.Steps[i] < 0 {
			return fmt.Errorf("%w: parameter %q has %d tensors of state after %d steps", ErrState, s.params[i].Name, n, r.Steps[i])
		}
		for k := range n {
			name, p := s.slotName(i, k), s.params[i].value
			if err := checkState([]NamedTensor{{name, p}}, f, nil, false); err != nil {
				return err
			}
		}
		known += n
	}
	if infos := under(f, "optimizer."); len(infos) != known {
		return fmt.Errorf("%w: the file has %d tensors of the optimiser: want %d", ErrState, len(infos), known)
	}
	return nil
}

// restore makes the state what a checked record says, and returns its tensors, to be read.
func (s *Base) restore(ctx context.Context, r optimizerRecord) (all []NamedTensor, err error) {
	ctx = tensor.Detached(ctx)
	for i, n := range r.Tensors {
		slots, _ := s.slots(i)
		for len(s.state[i]) > n {
			last := len(s.state[i]) - 1
			err := s.state[i][last].ReleaseContext(ctx)
			s.state[i] = s.state[i][:last]
			if err != nil {
				return nil, err
			}
		}
		for k := len(s.state[i]); k < n; k++ {
			t, err := slots[k].first(ctx, s.rt, s.params[i].Parameter)
			if err != nil {
				return nil, fmt.Errorf("state of parameter %q: %w", s.params[i].Name, err)
			}
			s.state[i] = append(s.state[i], t)
		}
		if err := s.park(ctx, []int{i}); err != nil {
			return nil, err
		}
		s.steps[i], s.filled[i] = r.Steps[i], n > 0
		for k, t := range s.state[i] {
			all = append(all, NamedTensor{s.slotName(i, k), t})
		}
	}
	for i, g := range s.groups {
		g.lr, g.momentum = r.Groups[i].LR, r.Groups[i].Momentum
	}
	return all, nil
}
