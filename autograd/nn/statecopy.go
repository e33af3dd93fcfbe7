package nn

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// StateCopy is a copy of a model's parameters and buffers in device memory, such as the best ones
// so far, or their mean over the steps.
//
//	ema := nn.Own(in, nn.NewStateCopy(ctx, model))
//	for _, tape := range in.Steps(1000) {
//		…
//		tape.Fail(ema.Average(tape.Context(), 0.999))
//	}
//	err := errors.Join(ema.Swap(ctx), evaluate(), ema.Swap(ctx))
//
// All methods queue their work on the runtime's stream and wait for nothing. They work in captures.
// The model's tensors stay in the same memory, so that graphs and later tapes read the new values;
// a tape that saved a parameter before is stale. If the device refuses a launch after the first, a
// part of the tensors has changed. A StateCopy can be saved: put it and the model in one struct,
// and save that in a checkpoint.Checkpoint or a file. It belongs to the goroutine of the
// parameters.
type StateCopy struct {
	rt    *tensor.Runtime
	pairs []statePair
	rows  []tensor.Update[tensor.SGD] // of Average
	most  int64                       // bytes of the largest tensor
	err   error
}

// statePair is a tensor of the model and its copy.
type statePair struct {
	of   *tensor.Tensor
	copy NamedTensor
}

// averages reports whether Average updates the tensor with tensor.Step, which takes these dtypes.
func (p statePair) averages() bool {
	return p.of.Dtype() == tensor.Float32 || p.of.Dtype() == tensor.Float64
}

// NewStateCopy copies the state of a model that [StateDict] lists, tied weights once. Err and each
// use return its error. Offloaded parameters are an error.
func NewStateCopy(ctx context.Context, model any) *StateCopy {
	s := &StateCopy{}
	if s.err = s.make(ctx, model); s.err != nil {
		s.err = errors.Join(fmt.Errorf("nn: NewStateCopy: %w", s.err), s.Close())
	}
	return s
}

func (s *StateCopy) make(ctx context.Context, model any) error {
	if err := check.Context("nn: NewStateCopy", ctx); err != nil {
		return err
	}
	state, err := StateDict(model)
	if err != nil {
		return err
	}
	seen := map[*tensor.Tensor]bool{}
	for _, t := range state {
		if seen[t.Tensor] {
			continue
		}
		seen[t.Tensor] = true
		if s.rt == nil {
			s.rt = t.Runtime()
		}
		if t.Runtime() != s.rt {
			return fmt.Errorf("%w: %q and %q live in two runtimes", tensor.ErrRuntime, state[0].Name, t.Name)
		}
		l := t.Label()
		l.Category = memcache.CategoryOptimizerState
		c, err := s.rt.Copy(memcache.WithLabel(tensor.Detached(ctx), l), t.Tensor)
		if err != nil {
			return fmt.Errorf("%q: %w", t.Name, err)
		}
		s.pairs, s.most = append(s.pairs, statePair{t.Tensor, NamedTensor{t.Name, c}}), max(s.most, t.Bytes())
	}
	return nil
}

// Err returns the error of making the copy, or nil.
func (s *StateCopy) Err() error { return s.err }

// Save copies the model's current state to the copy.
func (s *StateCopy) Save(ctx context.Context) error {
	return s.each("Save", ctx, func(p statePair) error { return s.rt.CopyInPlace(ctx, p.copy.Tensor, p.of) })
}

// Restore copies the copy to the model's state.
func (s *StateCopy) Restore(ctx context.Context) error {
	return s.each("Restore", ctx, func(p statePair) error { return s.rt.CopyInPlace(ctx, p.of, p.copy.Tensor) })
}

// Swap exchanges the copy and the model's state, such as before and after an evaluation. It
// allocates scratch of the size of the model's largest tensor.
func (s *StateCopy) Swap(ctx context.Context) (err error) {
	if s.err != nil || s.most == 0 {
		return s.err
	}
	own, lifetime := tensor.WithLifetime(tensor.Detached(ctx))
	defer func() { err = errors.Join(err, lifetime.CloseContext(ctx)) }()
	scratch, err := s.rt.New(own, tensor.Uint8, int(s.most))
	if err != nil {
		return fmt.Errorf("nn: StateCopy.Swap: %w", err)
	}
	return s.each("Swap", ctx, func(p statePair) error {
		aside, err := s.rt.ViewAs(own, scratch, 0, p.of.Dtype(), p.of.Shape()...)
		if err != nil {
			return err
		}
		if err := s.rt.CopyInPlace(ctx, aside, p.of); err != nil {
			return err
		}
		if err := s.rt.CopyInPlace(ctx, p.of, p.copy.Tensor); err != nil {
			return err
		}
		if err := s.rt.CopyInPlace(ctx, p.copy.Tensor, aside); err != nil {
			return errors.Join(err, s.rt.CopyInPlace(ctx, p.of, aside))
		}
		return nil
	})
}

// Average makes the copy decay*copy + (1-decay)*state, an exponential moving average
// (torch.optim.swa_utils.AveragedModel with use_buffers), in one launch of the device for 48
// tensors. Tensors that are neither float32 nor float64, such as a batch norm's number of batches,
// are copied. decay is from 0 to 1. The first copy counts as the mean of the steps before.
func (s *StateCopy) Average(ctx context.Context, decay float64) error {
	if err := check.Context("nn: StateCopy.Average", ctx); err != nil {
		return err
	}
	if !(decay >= 0 && decay <= 1) {
		return fmt.Errorf("nn: StateCopy.Average: %w: the decay is %v: want a number from 0 to 1", autograd.ErrInvalid, decay)
	}
	if s.err != nil {
		return s.err
	}
	// A step of SGD that maximizes, with a weight decay of 1, is copy - lr*(copy-state).
	rule := tensor.SGD{LR: 1 - decay, WeightDecay: 1, Maximize: true}
	s.rows = s.rows[:0]
	for _, p := range s.pairs {
		if p.averages() {
			s.rows = append(s.rows, tensor.Update[tensor.SGD]{Rule: rule, P: p.copy.Tensor, G: p.of})
		}
	}
	if len(s.rows) > 0 {
		if err := tensor.Step(ctx, s.rt, s.rows); err != nil {
			return fmt.Errorf("nn: StateCopy.Average: %w", err)
		}
	}
	return s.each("Average", ctx, func(p statePair) error {
		if p.averages() {
			return nil
		}
		return s.rt.CopyInPlace(ctx, p.copy.Tensor, p.of)
	})
}

func (s *StateCopy) each(op string, ctx context.Context, f func(statePair) error) error {
	if err := check.Context("nn: StateCopy."+op, ctx); err != nil {
		return err
	}
	if s.err != nil {
		return s.err
	}
	for _, p := range s.pairs {
		if err := f(p); err != nil {
			return fmt.Errorf("nn: StateCopy.%s: %q: %w", op, p.copy.Name, err)
		}
	}
	return nil
}

// Parameters is empty, so that an optimiser of a model that has a StateCopy leaves it alone.
func (s *StateCopy) Parameters() autograd.Parameters { return nil }

// Buffers are the copies, under the names of the model's state. The StateCopy owns them.
func (s *StateCopy) Buffers() []NamedTensor {
	var all []NamedTensor
	for _, p := range s.pairs {
		all = append(all, p.copy)
	}
	return all
}

// Close frees the copies, not the model. It is idempotent.
func (s *StateCopy) Close() error {
	var errs []error
	for _, p := range s.pairs {
		errs = append(errs, p.copy.Release())
	}
	return errors.Join(errs...)
}
