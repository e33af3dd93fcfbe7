package optim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Scheduler applies a [Schedule] to an optimiser, each group from its own first rate, or one
// schedule to each group. It belongs to the optimiser's goroutine.
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

// NewScheduler takes the present learning rates as the first ones, and sets those of step 0. One
// schedule is that of all groups. Several are one for each group, such as cycles that have a
// greatest rate each (OneCycleLR's list of max_lr, LambdaLR's of functions). A schedule whose
// numbers can't be, or one that cycles the momentum of an optimiser that has none, is an error.
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

// Step is called after each step of the optimiser, and sets the rates of the next one. In a capture
// it does so at each replay.
func (s *Scheduler) Step() error {
	if c := s.capturing(); c != nil {
		return c.OnReplay(func() error { return s.setStep(s.step + 1) })
	}
	return s.setStep(s.step + 1)
}

// capturing is the capture of the optimiser's runtime, or nil.
func (s *Scheduler) capturing() *tensor.Capture {
	return s.opt.Core().rt.Capturing()
}

// SchedulerRecord is what a file keeps of a [Scheduler] or a [ReduceLROnPlateau].
type SchedulerRecord struct {
	Step int
	Base []float64 // of a Scheduler: the first rate of each group

	// Of a ReduceLROnPlateau: the best metric, nil before the first one, the steps since then that
	// were no better, and the steps to come in which none is counted.
	Best     *float64 `json:",omitempty"`
	Bad      int      `json:",omitempty"`
	Cooldown int      `json:",omitempty"`
}

// Record returns what a file keeps.
func (s *Scheduler) Record() SchedulerRecord {
	return SchedulerRecord{Step: s.step, Base: slices.Clone(s.base)}
}

// CheckRecord returns an error that wraps [autograd.ErrInvalid] if the record is another schedule's.
func (s *Scheduler) CheckRecord(r SchedulerRecord) error {
	if r.Step < 0 || len(r.Base) != len(s.base) {
		return fmt.Errorf("%w: the schedule's step is %d, of %d groups: want one of %d", autograd.ErrInvalid, r.Step, len(r.Base), len(s.base))
	}
	return s.check(r.Step)
}

// check refuses schedules that can't be, or not at that step.
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

// of is the schedule of a group.
func (s *Scheduler) of(group int) Schedule { return s.schedules[min(group, len(s.schedules)-1)] }

// Restore takes the state of a record that CheckRecord accepts. The groups' rates are the
// optimiser's.
func (s *Scheduler) Restore(r SchedulerRecord) { s.step, s.base = r.Step, slices.Clone(r.Base) }

// LastStep is the number of calls of Step (last_epoch).
func (s *Scheduler) LastStep() int { return s.step }

// LR is the learning rate of the optimiser's first group (get_last_lr).
func (s *Scheduler) LR() float64 { return s.opt.LR() }

// SetStep sets the rates of any step, as if Step had been called so often. After an error nothing
// has changed. In a capture it does so at each replay.
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
			base = append(base, g.lr) // this one was added since
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

// momentumOf is the momentum that a schedule sets at a step, if it does.
func momentumOf(s Schedule, step int) (momentum float64, ok bool) {
	if m, cycles := s.(MomentumSchedule); cycles {
		return m.Momentum(step)
	}
	return 0, false
}

// String is such as "optim.StepLR at step 3 of SGD of 4 parameters, learning rate 0.1".
func (s *Scheduler) String() string {
	return fmt.Sprintf("%T at step %d of %v", s.schedules[0], s.step, s.opt)
}
