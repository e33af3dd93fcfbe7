package tensor

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Adam is a step of torch.optim.Adam, or AdamW if the decay is decoupled. The state is the first
// and second moments and, for amsgrad, the greatest second moments so far, which replace the
// current ones; otherwise nil. LR, Beta1 and Step may change from replay to replay.
type Adam struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	Decoupled                          bool
	Step                               int  // counts from 1
	Maximize                           bool // the step goes up the gradient
}

func (*Adam) name() string { return "StepAdam" }

func (*Adam) op() backend.Op { return backend.AdamStep }

func (s *Adam) check() error { return checkStepNumber(s.Step) }

func (*Adam) momentum() (float64, int) { return 0, -1 }

func (s *Adam) shared(n *plan.Numbers) {
	k := plan.AdamShared{Beta2: s.Beta2, C2: 1 - s.Beta2, Eps: s.Eps, Decay: s.WeightDecay, Sign: sign(s.Maximize)}
	if s.Decoupled {
		k.Decay = 0
	}
	*plan.NumbersOf[plan.AdamShared](&n[0]) = k
}

func (s *Adam) own(first *float64) {
	t := float64(s.Step)
	k := plan.AdamOwn{Size: s.LR / (1 - math.Pow(s.Beta1, t)), Correction: math.Sqrt(1 - math.Pow(s.Beta2, t)), Shrink: 1, C1: 1 - s.Beta1}
	if s.Decoupled {
		k.Shrink = 1 - s.LR*s.WeightDecay
	}
	*plan.NumbersOf[plan.AdamOwn](first) = k
}
