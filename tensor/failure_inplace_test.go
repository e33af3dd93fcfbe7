package tensor

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
)

// undefined is the Make of an operation that leaves the elements of some tensors undefined after a
// failure.
func undefined(prepare func(m *trialRig) ([]*Tensor, op)) func(testing.TB, *trialRig) failtest.Trial {
	return func(_ testing.TB, m *trialRig) failtest.Trial {
		ts, do := prepare(m)
		return m.undefining(ts, m.yields(do))
	}
}

// parts is the Make of an operation that overwrites some tensors, but not others, if it fails.
func parts(prepare func(m *trialRig) ([]*Tensor, op)) func(testing.TB, *trialRig) failtest.Trial {
	return func(_ testing.TB, m *trialRig) failtest.Trial { return m.partly(prepare(m)) }
}

// stepped is the Make of a step of two parameters, with so many tensors of state.
func stepped[R Rule](rule R, states int) func(testing.TB, *trialRig) failtest.Trial {
	return parts(func(m *trialRig) (written []*Tensor, _ op) {
		var updates []Update[R]
		for _, n := range []int{3, 500} {
			u := Update[R]{Rule: rule, P: m.wide(n), G: m.in(n)}
			written = append(written, u.P)
			for i := range states {
				u.State[i] = m.wide(n)
				require.NoError(m.t, m.Zero(m.ctx, u.State[i]))
				written = append(written, u.State[i])
			}
			updates = append(updates, u)
		}
		return written, func(ctx context.Context) ([]*Tensor, error) { return nil, Step(ctx, m.Runtime, updates) }
	})
}

// recurrentOf returns the operands of a recurrent layer of 3 steps and 2 sequences, with states of
// 2 numbers.
func (m *trialRig) recurrentOf(kind RecurrentKind, gates int) (inputs *Tensor, w RecurrentWeights) {
	w = RecurrentWeights{Weight: m.in(2*gates, 2), Bias: m.in(2 * gates), H0: m.in(2, 2)}
	if kind == LSTM {
		w.C0 = m.in(2, 2)
	}
	return m.in(3, 2, 2*gates), w
}

// inPlaceRows are programs of operations that overwrite tensors in several launches.
var inPlaceRows = []trialRow{
	{Of: "Step SGD", Partly: launched, Make: stepped(SGD{LR: 0.5, Momentum: 0.5}, 1)},
	{Of: "Step Adam", Partly: launched, Make: stepped(Adam{LR: 0.5, Beta1: 0.5, Beta2: 0.5, Eps: 1e-3, Step: 1}, 2)},
	{Of: "Step RMSprop", Partly: launched, Make: stepped(RMSprop{LR: 0.5, Alpha: 0.5, Eps: 1e-3}, 1)},
	{Of: "Step Adagrad", Partly: launched, Make: stepped(Adagrad{LR: 0.5, Eps: 1e-3, Step: 1}, 1)},
	{Of: "Step Lion", Partly: launched, Make: stepped(Lion{LR: 0.5, Beta1: 0.5, Beta2: 0.5}, 1)},
	{Of: "Gradients.ClipNorm", Partly: launched, Make: parts(func(m *trialRig) ([]*Tensor, op) {
		ts := []*Tensor{m.in(3), m.in(2, 500), m.inOf(Float64, 2)}
		return ts, func(ctx context.Context) ([]*Tensor, error) { return pack(m.ClipNorm(ctx, 0.5, 2, ts...)) }
	})},
	{Of: "Gradients.ClipNorm without a bound", Make: of(func(m *trialRig) op {
		ts := []*Tensor{m.in(3), m.in(2, 500)}
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.ClipNorm(ctx, math.Inf(1), 2, ts...)) }
	})},
	{Of: "Gradients.ClipValue", Partly: launched, Make: parts(func(m *trialRig) ([]*Tensor, op) {
		ts := []*Tensor{m.in(3), m.inOf(Float64, 3), m.in(2, 500)} // two calls
		return ts, func(ctx context.Context) ([]*Tensor, error) { return nil, m.ClipValue(ctx, 0.5, ts...) }
	})},
	{Of: "Gradients.ReLUBiasGrad in place", Partly: unallocated, Make: undefined(func(m *trialRig) ([]*Tensor, op) {
		dy, y := m.in(2, 3), m.in(2, 3)
		return []*Tensor{dy}, func(ctx context.Context) ([]*Tensor, error) {
			_, db, err := m.ReLUBiasGrad(ctx, dy, dy, y)
			return pack(db, err)
		}
	})},
	{Of: "Layers.AddNormalize of a donated operand", Partly: unallocated, Make: undefined(func(m *trialRig) ([]*Tensor, op) {
		x, y := m.in(2, 3), m.in(2, 3)
		return []*Tensor{x}, func(ctx context.Context) ([]*Tensor, error) {
			Donate(x)
			return pack(m.AddNormalize(ctx, x, y, nil, nil, layer))
		}
	})},
	{Of: "Layers.BatchNorm that trains", Partly: launched, Make: parts(func(m *trialRig) ([]*Tensor, op) {
		x, w, bias := m.in(2, 3, 2), m.in(3), m.in(3)
		cfg := BatchNormConfig{Training: true, Mean: m.wide(3), Var: m.wide(3), Batches: put(m.rig, []int64{4}, 1)}
		return []*Tensor{cfg.Mean, cfg.Var, cfg.Batches}, func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.BatchNorm(ctx, x, w, bias, cfg))
		}
	})},
	{Of: "Gradients.BatchNormGrad in place", Partly: launched, Make: parts(func(m *trialRig) ([]*Tensor, op) {
		dy, x, w, stats := m.normed(3, 2, 3, 2)
		return []*Tensor{dy}, func(ctx context.Context) ([]*Tensor, error) {
			_, dw, db, err := m.BatchNormGrad(ctx, dy, dy, x, w, stats, BatchNormConfig{Training: true}, ofAll)
			return pack(dw, db, err)
		}
	})},
	{Of: "Layers.Recurrent", Partly: unallocated, Make: undefined(func(m *trialRig) ([]*Tensor, op) {
		inputs, w := m.recurrentOf(LSTM, 4)
		return []*Tensor{inputs}, func(ctx context.Context) ([]*Tensor, error) {
			r, err := m.Recurrent(ctx, LSTM, inputs, w, false, true)
			return pack(r.Y, r.C, r.New, err)
		}
	})},
	{Of: "Layers.Recurrent GRU", Partly: unallocated, Make: undefined(func(m *trialRig) ([]*Tensor, op) {
		inputs, w := m.recurrentOf(GRU, 3)
		return []*Tensor{inputs}, func(ctx context.Context) ([]*Tensor, error) {
			r, err := m.Recurrent(ctx, GRU, inputs, w, true, true)
			return pack(r.Y, r.C, r.New, err)
		}
	})},
	{Of: "Gradients.RecurrentGrad Recurrence.Release", Partly: unallocated, Make: undefined(func(m *trialRig) ([]*Tensor, op) {
		inputs, w := m.recurrentOf(GRU, 3)
		r, err := m.Recurrent(m.ctx, GRU, inputs, w, false, true)
		require.NoError(m.t, err)
		dy, dh := m.in(3, 2, 2), m.in(2, 2)
		return []*Tensor{inputs}, func(ctx context.Context) ([]*Tensor, error) {
			g, err := m.RecurrentGrad(ctx, GRU, r, w, dy, dh, nil, false)
			if err != nil {
				return nil, err
			}
			return []*Tensor{g.Hidden, g.H0}, nil
		}
	})},
}
