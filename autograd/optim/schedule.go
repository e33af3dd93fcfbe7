package optim

import (
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
)

// Schedule is a learning rate schedule (torch.optim.lr_scheduler): a function of the optimiser's
// first rate and of the number of steps taken, from 0 on. A [Scheduler] applies it. Schedules are
// plain values, so LR may be called for any step at any time.
type Schedule interface {
	// LR returns the learning rate of a step.
	LR(base float64, step int) float64
}

// MomentumSchedule is a [Schedule] that also sets the momentum, or Adam's beta1.
type MomentumSchedule interface {
	Schedule
	// Momentum returns the momentum of a step; ok is false if the schedule does not change it.
	Momentum(step int) (momentum float64, ok bool)
}

// checked is a schedule that checks its arguments and the step.
type checked interface {
	check(step int) error
}

// StepLR multiplies the rate by Gamma every Size steps.
type StepLR struct {
	Size  int      // at least 1
	Gamma *float64 // nil: 0.1
}

// LR returns base * Gamma**(step/Size), with an integer division.
func (s StepLR) LR(base float64, step int) float64 {
	return base * math.Pow(check.Or(s.Gamma, 0.1), float64(step/max(1, s.Size)))
}

func (s StepLR) check(int) error { return atLeast1("StepLR", "Size", s.Size) }

// MultiStepLR multiplies the rate by Gamma at each of the milestones.
type MultiStepLR struct {
	Milestones []int    // in any order; duplicates count
	Gamma      *float64 // nil: 0.1
}

// LR returns base * Gamma**n, where n is the number of milestones up to step.
func (s MultiStepLR) LR(base float64, step int) float64 {
	n := 0
	for _, m := range s.Milestones {
		if m <= step {
			n++
		}
	}
	return base * math.Pow(check.Or(s.Gamma, 0.1), float64(n))
}

// ExponentialLR multiplies the rate by Gamma in every step.
type ExponentialLR struct {
	Gamma float64
}

// LR returns base * Gamma**step.
func (s ExponentialLR) LR(base float64, step int) float64 {
	return base * math.Pow(s.Gamma, float64(step))
}

func (s ExponentialLR) check(int) error {
	return within("ExponentialLR", "Gamma", s.Gamma, 0, math.MaxFloat64)
}

// ConstantLR multiplies the rate by Factor in the first Iters steps.
type ConstantLR struct {
	Factor *float64 // from 0 to 1; nil: 1/3
	Iters  *int     // total_iters; nil: 5. 0 keeps the factor for ever, as in PyTorch
}

// LR returns base * Factor, and base from step Iters on.
func (s ConstantLR) LR(base float64, step int) float64 {
	if n := itersOr(s.Iters, 5); step >= n && n > 0 {
		return base
	}
	return base * check.Or(s.Factor, 1.0/3)
}

func (s ConstantLR) check(int) error {
	return within("ConstantLR", "Factor", check.Or(s.Factor, 1.0/3), 0, 1)
}

// LinearLR multiplies the rate by a factor that changes from Start to End in the first Iters steps.
type LinearLR struct {
	Start *float64 // start_factor, above 0 and at most 1; nil: 1/3
	End   *float64 // end_factor, from 0 to 1; nil: 1
	Iters *int     // total_iters; nil: 5
}

// LR returns base * (Start + (End-Start)*step/Iters), and base*End from step Iters on. With an Iters
// of 0 it returns base*Start.
func (s LinearLR) LR(base float64, step int) float64 {
	from, to, n := check.Or(s.Start, 1.0/3), check.Or(s.End, 1), itersOr(s.Iters, 5)
	if n == 0 {
		return base * from // as in PyTorch, which changes the rate only in steps 1 to Iters
	}
	return base * max(0, from+(to-from)*float64(min(step, n))/float64(n)) // rounding may go below 0
}

func (s LinearLR) check(int) error {
	if err := within("LinearLR", "Start", check.Or(s.Start, 1.0/3), math.SmallestNonzeroFloat64, 1); err != nil {
		return err
	}
	return within("LinearLR", "End", check.Or(s.End, 1), 0, 1)
}

// CosineAnnealingLR moves the rate from its first value to Min along half a cosine wave of TMax
// steps, and continues the wave after them.
type CosineAnnealingLR struct {
	TMax int     // at least 1
	Min  float64 // eta_min
}

// LR returns Min + (base-Min) * (1+cos(pi*step/TMax))/2.
func (s CosineAnnealingLR) LR(base float64, step int) float64 {
	n := max(1, s.TMax)
	return s.Min + (base-s.Min)*(1+math.Cos(math.Pi*float64(step%(2*n))/float64(n)))/2
}

func (s CosineAnnealingLR) check(int) error { return atLeast1("CosineAnnealingLR", "TMax", s.TMax) }

// LambdaLR multiplies the rate by the result of a function of the step.
type LambdaLR func(step int) float64

// LR returns base * s(step), or NaN if s is nil.
func (s LambdaLR) LR(base float64, step int) float64 {
	if s == nil {
		return math.NaN()
	}
	return base * s(step)
}

func (s LambdaLR) check(int) error {
	if s == nil {
		return fmt.Errorf("optim: LambdaLR: %w: the function is nil", autograd.ErrInvalid)
	}
	return nil
}

// SequentialLR applies schedules one after another. At step Milestones[i] the i-th one ends, and
// the next one begins with its step 0. Each of them begins with the optimiser's first rate.
type SequentialLR struct {
	Schedules  []Schedule
	Milestones []int // one fewer than schedules, increasing
}

// LR returns the rate of the schedule that applies at step.
func (s SequentialLR) LR(base float64, step int) float64 {
	i, from := s.at(step)
	if i >= len(s.Schedules) {
		return base
	}
	return s.Schedules[i].LR(base, step-from)
}

// Momentum returns the momentum of the schedule that applies at step, if that sets one.
func (s SequentialLR) Momentum(step int) (float64, bool) {
	i, from := s.at(step)
	if i >= len(s.Schedules) {
		return 0, false
	}
	return momentumOf(s.Schedules[i], step-from)
}

// at returns the index of the schedule that applies at step, and the step at which it begins.
// Without schedules the index is out of range.
func (s SequentialLR) at(step int) (i, from int) {
	for i < len(s.Milestones) && i+1 < len(s.Schedules) && s.Milestones[i] <= step {
		from = s.Milestones[i]
		i++
	}
	return i, from
}

func (s SequentialLR) check(step int) error {
	if len(s.Schedules) == 0 || len(s.Milestones) != len(s.Schedules)-1 || !slices.IsSorted(s.Milestones) || slices.Contains(s.Schedules, nil) {
		return fmt.Errorf("optim: SequentialLR: %w: %d schedules and the milestones %v: want an increasing one between each two", autograd.ErrInvalid, len(s.Schedules), s.Milestones)
	}
	now, from := s.at(step)
	for i, one := range s.Schedules {
		at := 0
		if i == now { // not by comparing them: schedules may hold slices and functions
			at = step - from
		}
		if err := checkSchedule(one, at); err != nil {
			return err
		}
	}
	return nil
}

// checkSchedule returns an error if a schedule is invalid, or does not have that step.
func checkSchedule(s Schedule, step int) error {
	if c, ok := s.(checked); ok {
		return c.check(step)
	}
	return nil
}

func atLeast1(schedule, what string, n int) error {
	if n < 1 {
		return fmt.Errorf("optim: %s: %w: %s is %d: want at least 1", schedule, autograd.ErrInvalid, what, n)
	}
	return nil
}

func itersOr(n *int, standard int) int {
	if n == nil {
		return standard
	}
	return max(0, *n)
}
