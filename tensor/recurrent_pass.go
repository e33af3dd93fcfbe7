package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// at returns the part of t that belongs to a step, as the operand of a kernel; nil for nil. It
// holds no memory, so only kernels may use it.
func (p *recurrentPlan) at(t *Tensor, step int) *Tensor {
	if t == nil {
		return nil
	}
	h := &handle{rt: t.rt, store: t.store, shape: t.shape[1:], dtype: t.dtype, bytes: t.bytes / int64(max(1, t.shape[0]))}
	return &Tensor{handle: h, offset: t.offset + int64(min(step, t.shape[0]-1))*h.bytes}
}

// order returns the i-th step in the direction of the pass.
func (p *recurrentPlan) order(i int) int {
	if p.reverse {
		return p.steps - 1 - i
	}
	return i
}

// fused queues the whole pass as one operation, if the backend has one for it.
func (p *recurrentPlan) fused(ctx context.Context, rt *Runtime, f backend.Family, ts ...*Tensor) (done bool, err error) {
	c := rt.call(f.Of(int(p.kind)), ts...)
	backend.SetParams(c, plan.Recurrence{Steps: p.steps, Batch: p.batch, Size: p.size, Reverse: p.reverse})
	return rt.fused(ctx, c)
}

func (p *recurrentPlan) forward(ctx context.Context, rt *Runtime, r Recurrence, w RecurrentWeights) error {
	if done, err := p.fused(ctx, rt, backend.Recurrence, r.Gates, w.Weight, w.Bias, w.H0, w.C0, r.Y, r.C, r.New); done {
		return err
	}
	return p.forwardSteps(ctx, rt, r, w)
}

// forwardSteps queues a product and a kernel for each step.
func (p *recurrentPlan) forwardSteps(ctx context.Context, rt *Runtime, r Recurrence, w RecurrentWeights) error {
	states, err := rt.allocScratch(ctx, "Recurrent", r.Y.dtype, r.Gates.shape[1:])
	if err != nil {
		return err
	}
	defer func() { rt.parked.add(states.ReleaseContext(ctx)) }()
	m := product{Product: plan.Product{M: p.batch, K: p.size, N: states.shape[1], TransB: true}}
	h, state := w.H0, w.C0
	for i := range p.steps {
		step := p.order(i)
		var hidden *Tensor
		if h != nil {
			hidden = states
			if err := rt.matmul(ctx, m, states, h, w.Weight); err != nil {
				return err
			}
		}
		newH, newC := p.at(r.Y, step), p.at(r.C, step)
		c := rt.call(backend.Cell.Of(int(p.kind)), p.at(r.Gates, step), hidden, w.Bias, h, state, newH, newC, p.at(r.New, step))
		backend.SetParams(c, plan.Cell{Size: p.size})
		if err := rt.backend.Do(ctx, c); err != nil {
			return err
		}
		h, state = newH, newC
	}
	return nil
}

func (p *recurrentPlan) backward(ctx context.Context, rt *Runtime, r Recurrence, w RecurrentWeights, g RecurrentGrads, dy, dh, dc *Tensor) error {
	dhidden, first, before, after := (*Tensor)(nil), w.H0, r.Y, r.Y
	switch p.kind {
	case kernel.LSTM:
		first, before, after = w.C0, r.C, r.C
	case kernel.GRU:
		dhidden, after = g.Hidden, r.New
	}
	if done, err := p.fused(ctx, rt, backend.RecurrenceGrad, g.Inputs, dhidden, g.H0, g.C0, dy, dh, dc, w.Weight, first, before, after); done {
		return err
	}
	return p.backwardSteps(ctx, rt, r, w, g, dhidden, dy, dh, dc)
}

// backwardSteps queues a kernel and a product for each step. The gradient of the states' products
// is that of the inputs' products, except for a GRU, which has dhidden.
func (p *recurrentPlan) backwardSteps(ctx context.Context, rt *Runtime, r Recurrence, w RecurrentWeights, g RecurrentGrads, dhidden, dy, dh, dc *Tensor) error {
	m := product{Product: plan.Product{M: p.batch, K: g.Hidden.shape[2], N: p.size}}
	if dc != nil {
		if err := rt.placeRows(ctx, whole(g.C0), whole(dc), dc.shape); err != nil {
			return err
		}
	}
	for i := p.steps - 1; i >= 0; i-- {
		step := p.order(i)
		products := p.at(g.Hidden, step)
		dstate, h, c := g.H0, w.H0, w.C0
		if i == p.steps-1 {
			dstate = dh
		}
		if i > 0 {
			before := p.order(i - 1)
			h, c = p.at(r.Y, before), p.at(r.C, before)
		}
		call := rt.call(backend.CellGrad.Of(int(p.kind)), p.at(g.Inputs, step), p.at(dhidden, step), p.at(dy, step), dstate, g.C0, h, c,
			p.at(r.Y, step), p.at(r.C, step), p.at(r.New, step))
		backend.SetParams(call, plan.Cell{Size: p.size, First: i == p.steps-1 && dc == nil})
		if err := rt.backend.Do(ctx, call); err != nil {
			return err
		}
		if err := rt.matmul(ctx, m, g.H0, products, w.Weight); err != nil {
			return err
		}
	}
	if p.kind == kernel.GRU {
		return rt.zipTo(ctx, backend.Add, g.H0, g.H0, g.C0)
	}
	return nil
}
