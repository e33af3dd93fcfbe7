package tensor

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// SGD is a step of torch.optim.SGD. The state is the momentum buffer, which may be nil if Momentum
// is 0. LR, Momentum and First may change from replay to replay.
type SGD struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov                             bool
	First                                bool // the momentum buffer holds nothing yet
	Maximize                             bool // the step goes up the gradient
}

func (*SGD) name() string { return "StepSGD" }

func (*SGD) op() backend.Op { return backend.SGDStep }

func (*SGD) check() error { return nil }

func (s *SGD) momentum() (float64, int) { return s.Momentum, 0 }

func (s *SGD) shared(n *plan.Numbers) {
	*plan.NumbersOf[plan.SGDShared](&n[0]) = plan.SGDShared{Keep: 1 - s.Dampening, Decay: s.WeightDecay, Sign: sign(s.Maximize), Nesterov: asNumber(s.Nesterov)}
}

func (s *SGD) own(first *float64) {
	*plan.NumbersOf[plan.SGDOwn](first) = plan.SGDOwn{Rate: s.LR, Momentum: s.Momentum, First: asNumber(s.First)}
}
