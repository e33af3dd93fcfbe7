package plan_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// TestReaders: every element that is made of another one is among its readers, and they are few.
func TestReaders(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 3000 {
		a := plan.Axis{Sampling: plan.Sampling(r.IntN(4)), In: 1 + r.IntN(40), Out: 1 + r.IntN(90)}
		switch scale := float64(a.In) / float64(a.Out); {
		case a.Sampling == plan.Nearest:
			a.Step = scale * (0.9 + 0.2*r.Float64())
		case a.Sampling == plan.Linear && r.IntN(2) == 0:
			a.Step = float64(a.In-1) / float64(max(1, a.Out-1)) * float64(min(1, a.Out-1))
		case a.Sampling == plan.Linear:
			a.Step = scale
			a.Shift = scale/2 - 0.5
		default:
			before := r.IntN(2*a.In-1) - a.In + 1
			a.Shift = float64(-before)
			a.Out = max(0, a.In+before+r.IntN(2*a.In-1)-a.In+1)
		}
		for i := range a.In {
			from, to := a.Readers(i)
			count := 0
			for o := range a.Out {
				share := a.Tap(o).Share(i)
				require.True(t, share >= 0 && share <= 1, "%+v", a)
				if share > 0 {
					count++
					require.True(t, from <= o && o < to, "%+v: element %d reads %d, whose readers are %d to %d", a, o, i, from, to)
				}
			}
			if i > 0 && i < a.In-1 && a.Sampling < plan.Reflect && a.Step > 0 {
				require.LessOrEqual(t, to-from, count+6, "%+v: readers of %d", a, i)
			}
		}
		for o := range a.Out {
			sum := 0.0
			for i := range a.In {
				sum += a.Tap(o).Share(i)
			}
			require.InDelta(t, 1, sum, 1e-12, "%+v: shares of %d", a, o)
		}
	}
}
