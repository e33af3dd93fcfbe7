package optim

import (
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
)

// PlateauConfig are the options of [ReduceLROnPlateau]. The zero value has PyTorch's defaults.
type PlateauConfig struct {
	Max       bool     // mode="max": greater is better
	Factor    *float64 // from 0 to below 1; nil: 0.1
	Patience  *int     // number of steps in a row without improvement that are tolerated; nil: 10
	Threshold *float64 // the least improvement that counts; nil: 1e-4
	Absolute  bool     // threshold_mode="abs"; otherwise Threshold is relative to the best
	Cooldown  int      // number of steps after a reduction that are not counted as bad
	// MinLR are the lowest rates: one for all groups, or one for each; nil: 0.
	MinLR []float64
	Eps   *float64 // smaller changes of a rate are not made; nil: 1e-8
}

// ReduceLROnPlateau multiplies the learning rates by Factor when a metric, such as the validation
// loss, has not improved for more than Patience steps (torch.optim.lr_scheduler). It belongs to the
// optimiser's goroutine. A checkpoint.Checkpoint takes it as its Scheduler.
//
//	plateau, err := optim.NewReduceLROnPlateau(sgd, optim.PlateauConfig{Patience: new(2)})
//	for range epochs {
//		…
//		err = plateau.Step(validation)
//	}
type ReduceLROnPlateau struct {
	opt Optimizer
	cfg PlateauConfig
	at  SchedulerRecord
}

// NewReduceLROnPlateau returns a ReduceLROnPlateau of opt, and changes no rate yet. Invalid values
// in cfg are an error.
func NewReduceLROnPlateau(opt Optimizer, cfg PlateauConfig) (*ReduceLROnPlateau, error) {
	const op = "NewReduceLROnPlateau"
	if _, err := CoreOf(opt); err != nil {
		return nil, fmt.Errorf("optim: %s: %w", op, err)
	}
	if err := within(op, "Factor", check.Or(cfg.Factor, 0.1), 0, below1); err != nil {
		return nil, err
	}
	for _, n := range []struct {
		name string
		v    float64
	}{
		{"Threshold", check.Or(cfg.Threshold, 1e-4)}, {"Eps", check.Or(cfg.Eps, 1e-8)},
		{"Patience", float64(check.Or(cfg.Patience, 10))}, {"Cooldown", float64(cfg.Cooldown)},
	} {
		if err := within(op, n.name, n.v, 0, math.MaxFloat64); err != nil {
			return nil, err
		}
	}
	for i := range opt.Core().groups {
		if _, err := cfg.least(i, len(opt.Core().groups)); err != nil {
			return nil, err
		}
	}
	return &ReduceLROnPlateau{opt: opt, cfg: cfg}, nil
}

// least returns the lowest rate of group i of n.
func (c *PlateauConfig) least(i, n int) (float64, error) {
	lr := 0.0
	switch len(c.MinLR) {
	case 0:
	case 1:
		lr = c.MinLR[0]
	case n:
		lr = c.MinLR[i]
	default:
		return 0, fmt.Errorf("optim: ReduceLROnPlateau: %w: MinLR are %v for %d groups: want one rate, or one for each group", autograd.ErrInvalid, c.MinLR, n)
	}
	return lr, checkLR(lr)
}

// Step takes the metric of a validation and reduces the rates if necessary. Call it after each
// validation. NaN is never an improvement. A metric that can't be improved, such as a loss of -Inf,
// is an error. In a capture it is refused: call it between replays, with a metric that was read.
func (s *ReduceLROnPlateau) Step(metric float64) error {
	const op = "ReduceLROnPlateau.Step"
	if c := s.opt.Core().rt.Capturing(); c != nil {
		return fmt.Errorf("optim: %w", c.Refuse(op, "every replay would have the metric of the capture: call it between replays"))
	}
	sign := 1.0
	if s.cfg.Max {
		sign = -1
	}
	if math.IsInf(metric, -int(sign)) {
		return fmt.Errorf("optim: %s: %w: the metric is %v, and nothing can be better: want a number", op, autograd.ErrInvalid, metric)
	}
	at := s.at
	at.Step++
	if at.Best == nil && !math.IsNaN(metric) && !math.IsInf(metric, 0) || at.Best != nil && s.better(sign, metric, *at.Best) {
		at.Best, at.Bad = &metric, 0
	} else {
		at.Bad++
	}
	if at.Cooldown > 0 {
		at.Cooldown, at.Bad = at.Cooldown-1, 0
	}
	if at.Bad > check.Or(s.cfg.Patience, 10) {
		if err := s.reduce(); err != nil {
			return err
		}
		at.Cooldown, at.Bad = s.cfg.Cooldown, 0
	}
	s.at = at
	return nil
}

// better reports whether a metric improves on the best by the threshold. sign is -1 if greater is
// better.
func (s *ReduceLROnPlateau) better(sign, metric, best float64) bool {
	by := check.Or(s.cfg.Threshold, 1e-4)
	if s.cfg.Absolute {
		return sign*metric < sign*best-by
	}
	return sign*metric < sign*(best*(1-sign*by))
}

// reduce changes the rates of all groups, or none.
func (s *ReduceLROnPlateau) reduce() error {
	groups := s.opt.Core().groups
	rates := make([]float64, len(groups))
	for i, g := range groups {
		least, err := s.cfg.least(i, len(groups))
		if err != nil {
			return err
		}
		rates[i] = g.lr
		if lr := max(g.lr*check.Or(s.cfg.Factor, 0.1), least); g.lr-lr > check.Or(s.cfg.Eps, 1e-8) {
			rates[i] = lr
		}
	}
	for i, g := range groups {
		g.lr = rates[i]
	}
	return nil
}

// Record returns the data for a checkpoint.
func (s *ReduceLROnPlateau) Record() SchedulerRecord { return s.at }

// CheckRecord returns an error that wraps [autograd.ErrInvalid] if the record does not fit a
// ReduceLROnPlateau.
func (s *ReduceLROnPlateau) CheckRecord(r SchedulerRecord) error {
	if r.Base != nil || r.Step < 0 || r.Bad < 0 || r.Cooldown < 0 {
		return fmt.Errorf("%w: the schedule's step is %d, of %d groups, after %d bad steps: want one of a ReduceLROnPlateau", autograd.ErrInvalid, r.Step, len(r.Base), r.Bad)
	}
	return nil
}

// Restore sets the state to a record that CheckRecord accepts. It does not set the groups' rates,
// which the optimiser's Restore sets.
func (s *ReduceLROnPlateau) Restore(r SchedulerRecord) { s.at = r }

// LastStep returns the number of calls of Step (last_epoch).
func (s *ReduceLROnPlateau) LastStep() int { return s.at.Step }

// String returns a text such as "ReduceLROnPlateau after 3 steps, 1 of them bad, of SGD of 4
// parameters, learning rate 0.1".
func (s *ReduceLROnPlateau) String() string {
	return fmt.Sprintf("ReduceLROnPlateau after %d steps, %d of them bad, of %v", s.at.Step, s.at.Bad, s.opt)
}
