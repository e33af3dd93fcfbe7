package optim

import (
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
)

// OneCycleLR raises the rate to Max and then lowers it far below its first value, while the
// momentum moves the other way (torch.optim.lr_scheduler.OneCycleLR). The optimiser's own rate is
// ignored: the first rate is Max/Div. As in PyTorch the momentum of SGD and RMSprop and Adam's
// beta1 are cycled by default, so [NewScheduler] refuses an optimiser without momentum, such as
// Adagrad, unless KeepMomentum is set.
type OneCycleLR struct {
	Max   float64 // max_lr
	Steps int     // total_steps, at least 1: epochs times steps_per_epoch

	RiseShare    *float64 // pct_start, from 0 to 1: the share of steps that rise; nil: 0.3
	Linear       bool     // anneal_strategy="linear"; otherwise "cos"
	KeepMomentum bool     // cycle_momentum=False
	BaseMomentum *float64 // at the peak of the rate; nil: 0.85
	MaxMomentum  *float64 // at both ends; nil: 0.95
	Div          *float64 // div_factor: the first rate is Max/Div; nil: 25
	FinalDiv     *float64 // final_div_factor: the last rate is Max/Div/FinalDiv; nil: 1e4
	ThreePhase   bool     // three_phase: down to the first rate as fast as up, then to the last
}

// cycle is a phase, from the end of the previous phase to its own end.
type cycle struct {
	end                                    float64 // in steps
	fromLR, toLR, fromMomentum, toMomentum float64
}

func (s OneCycleLR) phases() []cycle {
	most, share, n := s.Max, check.Or(s.RiseShare, 0.3), float64(s.Steps)
	first := most / check.Or(s.Div, 25)
	last := first / check.Or(s.FinalDiv, 1e4)
	high, low := check.Or(s.MaxMomentum, 0.95), check.Or(s.BaseMomentum, 0.85)
	if s.ThreePhase {
		return []cycle{
			{share*n - 1, first, most, high, low},
			{2*share*n - 2, most, first, low, high},
			{n - 1, first, last, high, high},
		}
	}
	return []cycle{{share*n - 1, first, most, high, low}, {n - 1, most, last, low, high}}
}

// at returns the phase of a step, and the share of the phase before it.
func (s OneCycleLR) at(step int) (p cycle, share float64) {
	now, from := float64(min(step, s.Steps)), 0.0
	all := s.phases()
	for i, p := range all {
		if now <= p.end || i == len(all)-1 {
			if p.end == from { // an empty phase, such as the fall of a cycle that only rises
				return p, 1
			}
			return p, (now - from) / (p.end - from)
		}
		from = p.end
	}
	return p, 0 // not reached: phases is never empty
}

func (s OneCycleLR) between(from, to, share float64) float64 {
	if s.Linear {
		return (to-from)*share + from
	}
	return to + (from-to)/2*(math.Cos(math.Pi*share)+1)
}

// LR returns the rate of a step; base is ignored. The cycle ends with step Steps-1. A loop that
// calls [Scheduler.Step] after each of the Steps steps reaches step Steps, up to which PyTorch's
// formula continues. A linear rate would be negative there and is 0 instead. Later steps have the
// rate of step Steps; a Scheduler refuses them.
func (s OneCycleLR) LR(_ float64, step int) float64 {
	p, share := s.at(step)
	lr := s.between(p.fromLR, p.toLR, share)
	if step >= s.Steps {
		return max(0, lr)
	}
	return lr
}

// Momentum returns the momentum of a step, unless KeepMomentum is set. At step Steps, which no
// training step uses, it is limited to the range from 0 to below 1.
func (s OneCycleLR) Momentum(step int) (float64, bool) {
	p, share := s.at(step)
	momentum := s.between(p.fromMomentum, p.toMomentum, share)
	if step >= s.Steps {
		momentum = min(max(0, momentum), below1)
	}
	return momentum, !s.KeepMomentum
}

func (s OneCycleLR) check(step int) error {
	if err := atLeast1("OneCycleLR", "Steps", s.Steps); err != nil {
		return err
	}
	if step > s.Steps {
		return fmt.Errorf("optim: OneCycleLR: %w: step %d of a cycle of %d", autograd.ErrInvalid, step, s.Steps)
	}
	return within("OneCycleLR", "RiseShare", check.Or(s.RiseShare, 0.3), 0, 1)
}
