package tensor

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// RMSprop is a step of torch.optim.RMSprop. The state is the means of the squares of the gradients,
// then the means of the gradients (centered) or nil, and then the momentum buffer, which may be nil
// if Momentum is 0. LR and Momentum may change from replay to replay.
type RMSprop struct {
	LR, Alpha, Eps, WeightDecay, Momentum float64
	Maximize                              bool // the step goes up the gradient
}

func (*RMSprop) name() string { return "StepRMSprop" }

func (*RMSprop) op() backend.Op { return backend.RMSpropStep }

func (*RMSprop) check() error { return nil }

func (s *RMSprop) momentum() (float64, int) { return s.Momentum, 2 }

func (s *RMSprop) shared(n *plan.Numbers) {
	*plan.NumbersOf[plan.RMSpropShared](&n[0]) = plan.RMSpropShared{Alpha: s.Alpha, C: 1 - s.Alpha, Eps: s.Eps, Decay: s.WeightDecay, Sign: sign(s.Maximize)}
}

func (s *RMSprop) own(first *float64) {
	*plan.NumbersOf[plan.RMSpropOwn](first) = plan.RMSpropOwn{Rate: s.LR, Momentum: s.Momentum}
}
