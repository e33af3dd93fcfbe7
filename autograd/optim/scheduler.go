package optim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Scheduler applies one [Schedule] to all groups of an optimiser, or a separate one to each group.
// Each group starts from its own first rate. It belongs to the optimiser's goroutine.
//
//	scheduler, err := optim.NewScheduler(sgd, optim.CosineAnnealingLR{TMax: 1000})
//	for range 1000 {
//		…
//		err = errors.Join(sgd.Step(ctx), scheduler.Step())
//	}
type Scheduler struct {
	opt       Optimizer
	schedules []Schedule // one for all groups, or one for each
	step      int
	base      []float64 // the first rate of each group
}

// NewScheduler takes the current learning rates as the first ones, and sets those of step 0. One
// schedule applies to all groups. Several are one for each group, such as cycles with different
// greatest rates (in PyTorch, OneCycleLR's list of max_lr or LambdaLR's of functions). An invalid
// schedule is an error, and so is one that cycles the momentum of an optimiser without momentum.
func NewScheduler(opt Optimizer, schedules ...Schedule) (*Scheduler, error) {
	if len(schedules) == 0 || slices.ContainsFunc(schedules, func(s Schedule) bool { return s == nil }) {
		return nil, fmt.Errorf("optim: NewScheduler: %w: a schedule is nil, or there is none", autograd.ErrInvalid)
	}
	if _, err := CoreOf(opt); err != nil {
		return nil, fmt.Errorf("optim: NewScheduler: %w", err)
	}
	s := &Scheduler{opt: opt, schedules: slices.Clone(schedules)}
	if err := s.SetStep(0); err != nil {
		return nil, err
	}
	return s, nil
}

// Step sets the rates of the optimiser's next step. Call it after each step of the optimiser. In a
// capture it does so at each replay.
func (s *Scheduler) Step() error {
	if c := s.capturing(); c != nil {
		return c.OnReplay(func() error { return s.setStep(s.step + 1) })
	}
	return s.setStep(s.step + 1)
}

// capturing returns the current capture of the optimiser's runtime, or nil.
func (s *Scheduler) capturing() *tensor.Capture {
	return s.opt.Core().rt.Capturing()
}

// SchedulerRecord is the data of a [Scheduler] or a [ReduceLROnPlateau] in a checkpoint.
type SchedulerRecord struct {
	Step int
	Base []float64 // of a Scheduler: the first rate of each group

	// Of a ReduceLROnPlateau: the best metric (nil before the first one), the number of steps since
	// then without a better one, and the number of later steps that are not counted as bad.
	Best     *float64 `json:",omitempty"`
	Bad      int      `json:",omitempty"`
	Cooldown int      `json:",omitempty"`
}

// Record returns the data for a checkpoint.
func (s *Scheduler) Record() SchedulerRecord {
	return SchedulerRecord{Step: s.step, Base: slices.Clone(s.base)}
}

// CheckRecord returns an error that wraps [autograd.ErrInvalid] if the record does not fit the
// schedule.
func (s *Scheduler) CheckRecord(r SchedulerRecord) error {
	if r.Step < 0 || len(r.Base) != len(s.base) {
		return fmt.Errorf("%w: the schedule's step is %d, of %d groups: want one of %d", autograd.ErrInvalid, r.Step, len(r.Base), len(s.base))
	}
	return s.check(r.Step)
}

// check returns an error if a schedule is invalid, or does not have that step.
func (s *Scheduler) check(step int) error {
	if n, groups := len(s.schedules), len(s.opt.Core().groups); n > 1 && n != groups {
		return fmt.Errorf("optim: Scheduler: %w: %d schedules for %d groups: want one, or one for each group", autograd.ErrInvalid, n, groups)
	}
	for _, one := range s.schedules {
		if err := checkSchedule(one, step); err != nil {
			return err
		}
	}
	return nil
}

// of returns the schedule of a group.
func (s *Scheduler) of(group int) Schedule { return s.schedules[min(group, len(s.schedules)-1)] }

// Restore sets the state to a record that CheckRecord accepts. It does not set the groups' rates,
// which the optimiser's Restore sets.
func (s *Scheduler) Restore(r SchedulerRecord) { s.step, s.base = r.Step, slices.Clone(r.Base) }

// LastStep returns the number of calls of Step (last_epoch).
func (s *Scheduler) LastStep() int { return s.step }

// LR returns the learning rate of the optimiser's first group (get_last_lr).
func (s *Scheduler) LR() float64 { return s.opt.LR() }

// SetStep sets the rates of any step, as if Step had been called step times. An error changes
// nothing. In a capture it does so at each replay.
func (s *Scheduler) SetStep(step int) error {
	if c := s.capturing(); c != nil {
		return c.OnReplay(func() error { return s.setStep(step) })
	}
	return s.setStep(step)
}

func (s *Scheduler) setStep(step int) error {
	if step < 0 {
		return fmt.Errorf("optim: SetStep: %w: step %d", autograd.ErrInvalid, step)
	}
	if err := s.check(step); err != nil {
		return err
	}
	groups := s.opt.Core().groups
	base := s.base
	for i, g := range groups {
		if i == len(base) {
			base = append(base, g.lr) // a group that was added since
		}
		err := checkLR(s.of(i).LR(base[i], step))
		if momentum, cycles := momentumOf(s.of(i), step); cycles {
			err = errors.Join(err, g.checkMomentum(momentum))
		}
		if err != nil {
			return err
		}
	}
	for i, g := range groups {
		g.lr = s.of(i).LR(base[i], step)
		if momentum, cycles := momentumOf(s.of(i), step); cycles {
			g.momentum = momentum
		}
	}
	s.step, s.base = step, base
	return nil
}

// momentumOf returns the momentum that a schedule sets at a step, if it sets one.
func momentumOf(s Schedule, step int) (momentum float64, ok bool) {
	if m, cycles := s.(MomentumSchedule); cycles {
		return m.Momentum(step)
	}
	return 0, false
}

// String returns a text such as "optim.StepLR at step 3 of SGD of 4 parameters, learning rate 0.1".
func (s *Scheduler) String() string {
	return fmt.Sprintf("%T at step %d of %v", s.schedules[0], s.step, s.opt)
}
