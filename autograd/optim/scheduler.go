package optim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Scheduler applies a [Schedule] to an optimiser, each group from its own first rate. It belongs to
// the optimiser's goroutine.
//
//	scheduler, err := optim.NewScheduler(sgd, optim.CosineAnnealingLR{TMax: 1000})
//	for range 1000 {
//		…
//		err = errors.Join(sgd.Step(ctx), scheduler.Step())
//	}
type Scheduler struct {
	opt      Optimizer
	schedule Schedule
	step     int
	base     []float64 // the first rate of each group
}

// NewScheduler takes the present learning rates as the first ones, and sets those of step 0. A
// schedule whose numbers can't be, or one that cycles the momentum of an optimiser that has none,
// is an error.
func NewScheduler(opt Optimizer, schedule Schedule) (*Scheduler, error) {
	if schedule == nil {
		return nil, fmt.Errorf("optim: NewScheduler: %w: the schedule is nil", autograd.ErrInvalid)
	}
	if _, err := CoreOf(opt); err != nil {
		return nil, fmt.Errorf("optim: NewScheduler: %w", err)
	}
	s := &Scheduler{opt: opt, schedule: schedule}
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

// SchedulerRecord is what a file keeps of a [Scheduler].
type SchedulerRecord struct {
	Step int
	Base []float64 // the first rate of each group
}

// Record returns what a file keeps.
func (s *Scheduler) Record() SchedulerRecord { return SchedulerRecord{s.step, slices.Clone(s.base)} }

// CheckRecord returns an error that wraps [autograd.ErrInvalid] if the record is another schedule's.
func (s *Scheduler) CheckRecord(r SchedulerRecord) error {
	if r.Step < 0 || len(r.Base) != len(s.base) {
		return fmt.Errorf("%w: the schedule's step is %d, of %d groups: want one of %d", autograd.ErrInvalid, r.Step, len(r.Base), len(s.base))
	}
	return checkSchedule(s.schedule, r.Step)
}

// Restore makes the scheduler what a record says that CheckRecord accepts. The groups' rates are the
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
	if err := checkSchedule(s.schedule, step); err != nil {
		return err
	}
	groups := s.opt.Core().groups
	momentum, cycles := 0.0, false
	if m, ok := s.schedule.(MomentumSchedule); ok {
		momentum, cycles = m.Momentum(step)
	}
	base := s.base
	for i, g := range groups {
		if i == len(base) {
			base = append(base, g.lr) // this one was added since
		}
		err := checkLR(s.schedule.LR(base[i], step))
		if cycles {
			err = errors.Join(err, g.checkMomentum(momentum))
		}
		if err != nil {
			return err
		}
	}
	for i, g := range groups {
		g.lr = s.schedule.LR(base[i], step)
		if cycles {
			g.momentum = momentum
		}
	}
	s.step, s.base = step, base
	return nil
}

// String is such as "optim.StepLR at step 3 of SGD of 4 parameters, learning rate 0.1".
func (s *Scheduler) String() string {
	return fmt.Sprintf("%T at step %d of %v", s.schedule, s.step, s.opt)
}
