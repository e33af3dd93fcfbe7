package tensor

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Adagrad is a step of torch.optim.Adagrad. The state is the sums of the squares of the gradients.
// LR and Step may change from replay to replay.
type Adagrad struct {
	LR, LRDecay, WeightDecay, Eps float64
	Step                          int  // counts from 1
	Maximize                      bool // the step goes up the gradient
}

func (*Adagrad) name() string { return "StepAdagrad" }

func (*Adagrad) op() backend.Op { return backend.AdagradStep }

func (s *Adagrad) check() error { return checkStepNumber(s.Step) }

func (*Adagrad) momentum() (float64, int) { return 0, -1 }

func (s *Adagrad) shared(n *plan.Numbers) {
	*plan.NumbersOf[plan.AdagradShared](&n[0]) = plan.AdagradShared{Decay: s.WeightDecay, Eps: s.Eps, Sign: sign(s.Maximize)}
}

func (s *Adagrad) own(first *float64) {
	*plan.NumbersOf[plan.AdagradOwn](first) = plan.AdagradOwn{Rate: s.LR / (1 + float64(s.Step-1)*s.LRDecay)}
}
