package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// lost is the reason why a failure of Free can't be undone.
var lost = map[string]string{"Free": "memory that the driver does not take back is the cache's until it is closed"}

// addedTo is the reason why a backward pass onto gradients may take a partial effect.
var addedTo = map[failtest.Kind]string{
	failtest.Failed: "gradients that were there may have been added to", failtest.OutOfMemory: "as failed", failtest.Ended: "as failed",
}

// once is a trial of a step on a new tape, which Undo closes. See shows the parameters.
func once(m *failing, ps autograd.Parameters, step func(t onTape, vs []variable) error) failtest.Trial {
	var tape onTape
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			tape = autograd.NewTape(ctx, m.RT)
			err := step(tape, tapetest.ParamsOf(tape, ps))
			if err != nil {
				require.Equal(m.T, err, tape.Close())
			}
			return err
		},
		See: func() any { return m.SeeParameters(ps) },
		Undo: func() error {
			_ = tape.Close() // the error was returned already
			return ps.Release()
		},
	}
}

// ontoGradients is a trial of a backward pass of two parameters, of which the first one has a
// gradient.
func ontoGradients(loss func(t onTape, p, q, c variable) variable) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		ps := m.Operands(tensor.Float64, []int{2, 2}, []int{2})
		m.Differentiate(ps[:1])
		return ontoFirst(once(m, ps, func(t onTape, vs []variable) error {
			_, err := t.Backward(t.Mean(loss(t, vs[0], vs[1], t.Detach(vs[0]))))
			return err
		}), ps)
	}
}

// ontoFirst allows a failure to change the gradient of the first parameter, and nothing else.
func ontoFirst(trial failtest.Trial, ps autograd.Parameters) failtest.Trial {
	trial.Left = func(before any, err error) error {
		was, now := before.([]any), trial.See().([]any)
		was[1], now[1] = nil, nil
		if !reflect.DeepEqual(was, now) || ps[0].Grad() == nil {
			return fmt.Errorf("%v, want %v: %w", now, was, err)
		}
		return nil
	}
	return trial
}

// frees is a trial of the end of tapes and parameters. See shows the live tensors.
func frees(free func(ctx context.Context, t onTape, ps autograd.Parameters) error) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		ps := m.Operands(tensor.Float64, matrix, matrix)
		m.Differentiate(ps)
		tape := autograd.NewTape(m.Ctx, m.RT)
		tape.Mul(tape.Neg(tape.Param(ps[0].Parameter)), tape.Exp(tape.Param(ps[1].Parameter)))
		require.NoError(t, tape.Err())
		return failtest.Trial{
			Do: func(ctx context.Context) error { return free(ctx, tape, ps) },
			See: func() any {
				live, bytes := m.RT.Live()
				return []any{live, bytes, m.Cache.MemoryAllocated()}
			},
		}
	}
}

// all frees a tape and parameters, after the tried call.
func all(tape onTape, ps autograd.Parameters, err error) error {
	return errors.Join(err, tape.Close(), ps.Release())
}

// assigns is a hook that assigns each gradient as soon as it is final.
type assigns struct{ autograd.NoHooks }

func (*assigns) Final(t onTape, v variable) error { return t.AssignGrad(v, true) }

// captured is a trial of the capture of a step. See replays it.
func captured(before func(m *failing, ps autograd.Parameters)) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		ps := m.Operands(tensor.Float64, matrix, vector)
		before(m, ps)
		var graph *tensor.Graph
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				g, err := m.RT.Capture(ctx, func(ctx context.Context) error {
					tape := autograd.NewTape(ctx, m.RT)
					_, err := tape.Backward(tape.Sum(tape.Mul(tape.Dropout(tape.Param(ps[0].Parameter), 0), tape.Param(ps[1].Parameter))))
					return errors.Join(err, tape.Close())
				})
				if err == nil {
					graph = g
				}
				return err
			},
			See: func() any {
				if graph != nil {
					require.NoError(t, graph.Replay(m.Ctx))
				}
				return m.SeeParameters(ps)
			},
			Undo: func() error { return errors.Join(ps.Release(), graph.Close()) },
		}
	}
}

// hears is a hook in which each event may fail.
type hears struct {
	autograd.NoHooks
	call func() error
}

func (h *hears) Read(onTape, string, []variable) error  { return h.call() }
func (h *hears) Begin(onTape) error                     { return h.call() }
func (h *hears) Load(onTape, *autograd.Node, int) error { return h.call() }
func (h *hears) Final(onTape, variable) error           { return h.call() }
func (h *hears) End(onTape, error) error                { return h.call() }
func (h *hears) Leave(onTape) error                     { return h.call() }

// doubledBy multiplies by two with a function of the program's own, which saves a tensor of its
// own.
func doubledBy(t onTape, x variable) variable {
	return t.Func("Doubled", []variable{x}, func(c *autograd.Call) (*tensor.Tensor, error) {
		two, err := c.Runtime().Full(c.Context(), 2, c.Input(0).Dtype())
		if err != nil {
			return nil, err
		}
		c.Save(two)
		return c.Runtime().Mul(c.Context(), c.Input(0), two)
	}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(c.Runtime().Mul(c.Context(), g, c.Saved()[0]))
	})
}
