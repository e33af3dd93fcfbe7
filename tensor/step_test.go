package tensor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSGDStepsAgainstPyTorchsFormula(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	random := rand.New(rand.NewPCG(11, 12))
	for _, s := range []SGD{
		{LR: 0.1}, {LR: 0.1, WeightDecay: 0.2}, {LR: 0.1, Momentum: 0.9},
		{LR: 0.1, Momentum: 0.9, Dampening: 0.3, WeightDecay: 0.1}, {LR: 0.1, Momentum: 0.9, WeightDecay: 0.1, Nesterov: true},
	} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			const n = 7
			p := randomData(random, []int{n})
			param, buf := put(r, p), put(r, make([]float64, n))
			b := make([]float64, n)
			for step := range 4 {
				g := randomData(random, []int{n})
				for i := range p {
					d := g[i] + s.WeightDecay*p[i]
					if s.Momentum != 0 {
						if step == 0 {
							b[i] = d
						} else {
							b[i] = s.Momentum*b[i] + (1-s.Dampening)*d
						}
						if s.Nesterov {
							d += s.Momentum * b[i]
						} else {
							d = b[i]
						}
					}
					p[i] -= s.LR * d
				}
				s.First = step == 0
				state := buf
				if s.Momentum == 0 {
					state = nil
				}
				require.NoError(t, stepOne(r.ctx, r.Runtime, s, param, put(r, g), state))
				require.InDeltaSlice(t, p, get[float64](r, param, nil), 1e-13)
			}
		})
	}
}

// Without momentum the buffer is not read, and stays unchanged for a later step with momentum.
func TestSGDWithoutMomentumLeavesTheBufferAlone(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	p, g, buf := put(r, []float32{1, 2}), put(r, []float32{3, 4}), put(r, []float32{5, 6})
	written := buf.Version()
	require.NoError(t, stepOne(r.ctx, r.Runtime, SGD{LR: 1, Dampening: 0.5}, p, g, buf))
	require.Equal(t, []float32{-2, -2}, get[float32](r, p, nil))
	require.Equal(t, []float32{5, 6}, get[float32](r, buf, nil))
	require.Equal(t, written, buf.Version())
}

func TestAdamStepsAgainstPyTorchsFormula(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	random := rand.New(rand.NewPCG(13, 14))
	for _, s := range []Adam{
		{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-3},
		{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.3},
		{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.3, Decoupled: true},
	} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			const n = 7
			p := randomData(random, []int{n})
			param, m1, m2 := put(r, p), put(r, make([]float64, n)), put(r, make([]float64, n))
			m, v := make([]float64, n), make([]float64, n)
			for step := 1; step < 5; step++ {
				g := randomData(random, []int{n})
				for i := range p {
					d := g[i]
					if s.Decoupled {
						p[i] *= 1 - s.LR*s.WeightDecay
					} else {
						d += s.WeightDecay * p[i]
					}
					m[i] = s.Beta1*m[i] + (1-s.Beta1)*d
					v[i] = s.Beta2*v[i] + (1-s.Beta2)*d*d
					mh, vh := m[i]/(1-math.Pow(s.Beta1, float64(step))), v[i]/(1-math.Pow(s.Beta2, float64(step)))
					p[i] -= s.LR * mh / (math.Sqrt(vh) + s.Eps)
				}
				s.Step = step
				require.NoError(t, stepOne(r.ctx, r.Runtime, s, param, put(r, g), m1, m2))
				require.InDeltaSlice(t, p, get[float64](r, param, nil), 1e-12)
			}
		})
	}
}

func TestStepsRefuse(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	p, g, other := put(r, []float32{1, 2}), put(r, []float32{1, 2}), put(r, []float32{1, 2, 3})
	require.ErrorIs(t, stepOne(r.ctx, r.Runtime, SGD{LR: 1}, p, other, nil), ErrShape)
	require.ErrorIs(t, stepOne(r.ctx, r.Runtime, SGD{LR: 1, Momentum: 0.5}, p, g, nil), ErrInvalid)
	require.ErrorIs(t, stepOne(r.ctx, r.Runtime, SGD{LR: 1}, p, p, nil), ErrInvalid, "the gradient is the parameter")
	all := put(r, []float32{1, 2, 3, 4})
	lower, err := r.Rows(r.ctx, all, 0, 2)
	require.NoError(t, err)
	upper, err := r.Rows(r.ctx, all, 2, 4)
	require.NoError(t, err)
	middle, err := r.Rows(r.ctx, all, 1, 3)
	require.NoError(t, err)
	require.NoError(t, stepOne(r.ctx, r.Runtime, Adam{Step: 1}, p, g, lower, upper), "parts of one buffer that do not overlap")
	require.ErrorIs(t, stepOne(r.ctx, r.Runtime, Adam{Step: 1}, p, g, lower, middle), ErrInvalid)
	require.ErrorIs(t, stepOne(r.ctx, r.Runtime, Adam{}, p, g, other, other), ErrInvalid, "step 0")
	require.ErrorIs(t, stepOne(r.ctx, r.Runtime, Adam{Step: 1}, p, g, other, g), ErrShape)
	for name, err := range map[string]error{
		"adam without its mean":    stepOne(r.ctx, r.Runtime, Adam{Step: 1}, p, g, nil, lower),
		"adam without its squares": stepOne(r.ctx, r.Runtime, Adam{Step: 1}, p, g, lower, nil),
		"rmsprop":                  Step(r.ctx, r.Runtime, []Update[RMSprop]{{P: p, G: g}}),
		"adagrad":                  Step(r.ctx, r.Runtime, []Update[Adagrad]{{Rule: Adagrad{Step: 1}, P: p, G: g}}),
		"lion":                     Step(r.ctx, r.Runtime, []Update[Lion]{{P: p, G: g}}),
	} {
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	require.NoError(t, r.Synchronize(r.ctx))
}

// TestAStepOfNarrowGradientsIsWhole: a context that is cancelled after the step of some parameters
// does not stop the step of the others.
func TestAStepOfNarrowGradientsIsWhole(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	var updates []Update[SGD]
	for range 3 {
		g, err := r.Convert(r.ctx, put(r, []float32{1, 2}), BFloat16)
		require.NoError(t, err)
		updates = append(updates, Update[SGD]{Rule: SGD{LR: 1}, P: put(r, []float32{1, 2}), G: g})
	}
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	require.NoError(t, Step(ctx, r.Runtime, updates))
	for _, u := range updates {
		require.Equal(t, []float32{0, 0}, get[float32](r, u.P, nil))
	}
}

// TestCapturedSteps get new numbers at each replay where Next is set, and keep them elsewhere.
func TestCapturedSteps(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	p, q, g, h := put(r, []float64{10}), put(r, []float64{20}), put(r, []float64{1}), put(r, []float64{1})
	rate := 0.0
	graph := r.capture(r.ctx, func(ctx context.Context) error {
		return Step(ctx, r.Runtime, []Update[SGD]{
			{Rule: SGD{LR: 3}, P: q, G: h},
			{Rule: SGD{LR: 1}, P: p, G: g, Next: func() SGD { return SGD{LR: rate} }},
		})
	})
	for _, rate = range []float64{1, 2, 4} {
		require.NoError(t, graph.Replay(r.ctx))
	}
	require.Equal(t, []float64{10 - 1 - 2 - 4}, get[float64](r, p, nil))
	require.Equal(t, []float64{20 - 3*3}, get[float64](r, q, nil))
}

func stepOne[R Rule](ctx context.Context, rt *Runtime, rule R, p, g *Tensor, state ...*Tensor) error {
	u := Update[R]{Rule: rule, P: p, G: g}
	copy(u.State[:], state)
	return Step(ctx, rt, []Update[R]{u})
}

// momentums checks replays of a captured step of R against steps that are not captured, while the
// momentum changes. A momentum that is turned on or off is refused, and changes nothing.
func momentums[R Rule](t *testing.T, states, buffer int, rule func(momentum float64) R) {
	for _, captured := range []float64{0, 0.5} {
		r := newRig(t, 64<<20).scoped()
		parameter := func() (u Update[R], all []*Tensor) {
			u = Update[R]{Rule: rule(captured), P: put(r, []float32{1, -2, 3}), G: put(r, []float32{0.5, 0.25, -1})}
			all = append(all, u.P)
			for i := range states {
				u.State[i] = put(r, []float32{2, 1, 0.5})
				all = append(all, u.State[i])
			}
			if captured != 0 {
				u.State[buffer] = put(r, []float32{0.125, 1, -3})
				all = append(all, u.State[buffer])
			}
			return u, all
		}
		u, all := parameter()
		eager, want := parameter()
		momentum := captured
		u.Next = func() R { return rule(momentum) }
		g := r.capture(r.ctx, func(ctx context.Context) error { return Step(ctx, r.Runtime, []Update[R]{u}) })
		for _, momentum = range []float64{captured, 0, 0.25, 0, 0.75} {
			err := g.Replay(r.ctx)
			if (momentum != 0) == (captured != 0) {
				eager.Rule = rule(momentum)
				require.NoError(t, errors.Join(err, Step(r.ctx, r.Runtime, []Update[R]{eager})))
			} else {
				require.ErrorIs(t, err, ErrInvalid, "momentum %v where %v was captured", momentum, captured)
			}
			for i := range all {
				require.Equal(t, get[float32](r, want[i], nil), get[float32](r, all[i], nil), "momentum %v where %v was captured", momentum, captured)
			}
		}
	}
}

func TestCapturedStepsWithMomentum(t *testing.T) {
	momentums(t, 0, 0, func(m float64) SGD { return SGD{LR: 0.5, Momentum: m} })
	momentums(t, 1, 2, func(m float64) RMSprop { return RMSprop{LR: 0.5, Alpha: 0.5, Eps: 1e-3, Momentum: m} })
}
