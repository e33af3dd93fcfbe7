package tensor

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Lion is a step of Lion, whose decay is decoupled (Chen et al., Symbolic Discovery of Optimization
// Algorithms, 2023). The state is the momentum. LR may change from replay to replay.
type Lion struct {
	LR, Beta1, Beta2, WeightDecay float64
	Maximize                      bool // the step goes up the gradient
}

func (*Lion) name() string { return "StepLion" }

func (*Lion) op() backend.Op { return backend.LionStep }

func (*Lion) check() error { return nil }

func (*Lion) momentum() (float64, int) { return 0, -1 }

func (s *Lion) shared(n *plan.Numbers) {
	*plan.NumbersOf[plan.LionShared](&n[0]) = plan.LionShared{Beta1: s.Beta1, C1: 1 - s.Beta1, Beta2: s.Beta2, C2: 1 - s.Beta2, Sign: sign(s.Maximize)}
}

func (s *Lion) own(first *float64) {
	*plan.NumbersOf[plan.LionOwn](first) = plan.LionOwn{Rate: s.LR, Shrink: 1 - s.LR*s.WeightDecay}
}
