package optim

import (
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
)

// CosineAnnealingWarmRestarts lowers the rate from its first value to Min along half a cosine wave
// of T0 steps, then restarts with T0*TMult steps, and so on (Loshchilov and Hutter, SGDR, 2017).
type CosineAnnealingWarmRestarts struct {
	T0    int     // T_0: the steps of the first half wave, at least 1
	TMult int     // T_mult: the length of each half wave relative to the one before; 0: 1
	Min   float64 // eta_min
}

// LR returns Min + (base-Min) * (1+cos(pi*at/length))/2, for step at of a half wave of length
// steps.
func (s CosineAnnealingWarmRestarts) LR(base float64, step int) float64 {
	length, at := max(1, s.T0), max(0, step)
	if s.TMult <= 1 {
		at %= length
	}
	for at >= length && length <= math.MaxInt/s.TMult {
		at -= length
		length *= s.TMult
	}
	return s.Min + (base-s.Min)*(1+math.Cos(math.Pi*float64(at)/float64(length)))/2
}

func (s CosineAnnealingWarmRestarts) check(int) error {
	if err := atLeast1("CosineAnnealingWarmRestarts", "T0", s.T0); err != nil {
		return err
	}
	if s.TMult < 0 {
		return fmt.Errorf("optim: CosineAnnealingWarmRestarts: %w: TMult is %d: want 0 or more", autograd.ErrInvalid, s.TMult)
	}
	return nil
}
