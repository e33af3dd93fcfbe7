package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// LionStep is one step of Lion (Chen et al., Symbolic Discovery of Optimization Algorithms, 2023),
// whose decay is decoupled.
type LionStep struct {
	LR, Beta1, Beta2, WeightDecay float64
	Maximize                      bool // the step goes up the gradient
}

// LionUpdate is the step of one parameter with the momentum M. In a capture Next returns the step
// of each replay, of which LR counts; nil: it is the same each time.
type LionUpdate struct {
	LionStep
	P, G, M *Tensor
	Next    func() LionStep
}

// StepLionAll updates parameters in place as StepRMSpropAll does.
func (rt *Runtime) StepLionAll(ctx context.Context, updates []LionUpdate) error {
	return rt.step(ctx, backend.LionStep, "StepLion", len(updates), func(i int, to *update) error {
		u := &updates[i]
		to.step, to.p, to.g, to.state[0] = &u.LionStep, u.P, u.G, u.M
		if next := u.Next; next != nil && rt.Capturing() != nil {
			s := u.LionStep
			to.next = func() (stepper, error) { s = next(); return &s, nil }
		}
		return nil
	})
}

func (s *LionStep) shared(n *kernel.Numbers) {
	*kernel.NumbersOf[kernel.LionShared](&n[0]) = kernel.LionShared{Beta1: s.Beta1, C1: 1 - s.Beta1, Beta2: s.Beta2, C2: 1 - s.Beta2, Sign: sign(s.Maximize)}
}

func (s *LionStep) own(first *float64) {
	*kernel.NumbersOf[kernel.LionOwn](first) = kernel.LionOwn{Rate: s.LR, Shrink: 1 - s.LR*s.WeightDecay}
}
