package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// lost is why a failure of Free can't be undone.
var lost = map[string]string{"Free": "memory that the driver does not take back is the cache's until it is closed"}

// addedTo is why a backward pass onto gradients may have done a part.
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

// ontoGradients is a trial of a backward pass of two parameters, of which the first one has a gradient.
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

// ontoFirst lets a failure leave anything added to the gradient of the first parameter, and nothing else.
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

// frees is a trial of the end of tapes and parameters. See shows what is live.
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

// all frees a tape and parameters, after what is to be tried.
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

// hears is a hook each event of which may fail.
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

// doubledBy multiplies by two with a function of the program's own, which saves a tensor of its own.
func doubledBy(t onTape, x variable) variable {
	return t.Func("Doubled", []variable{x}, func(c *autograd.Call) (*tensor.Tensor, error) {
		two, err := c.Runtime().Full(c.Context(), 2, tensor.Float64)
		if err != nil {
			return nil, err
		}
		c.Save(two)
		return c.Runtime().Mul(c.Context(), c.Input(0), two)
	}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(c.Runtime().Mul(c.Context(), g, c.Saved()[0]))
	})
}

// tapeRows are what tapes and parameters do besides operations.
var tapeRows = []failtest.Row[*failing]{
	{Of: "Tape.Close", Ends: lost, Make: frees(func(ctx context.Context, tape onTape, ps autograd.Parameters) error {
		tape.SetContext(ctx)
		return all(tape, ps, nil)
	})},
	{Of: "Tape.Reset", Ends: lost, Make: frees(func(ctx context.Context, tape onTape, ps autograd.Parameters) error {
		err := tape.Reset(ctx)
		again := tape.Reset(context.Background()) // the error was returned already
		tape.Reshape(tape.Param(ps[0].Parameter), 6)
		return all(tape, ps, errors.Join(err, again))
	})},
	{Of: "Parameter.ZeroGrad Parameters.ZeroGrad", Ends: lost, Make: frees(func(ctx context.Context, tape onTape, ps autograd.Parameters) error {
		return all(tape, ps, errors.Join(ps[0].ZeroGrad(ctx), ps.ZeroGrad(ctx)))
	})},
	{Of: "Parameter.Release Parameter.ReleaseContext", Ends: lost, Make: frees(func(ctx context.Context, tape onTape, ps autograd.Parameters) error {
		return all(tape, ps, errors.Join(ps[0].Parameter.Release(), ps[1].Parameter.ReleaseContext(ctx)))
	})},
	{Of: "Parameters.Release Parameters.ReleaseContext", Ends: lost, Make: frees(func(ctx context.Context, tape onTape, ps autograd.Parameters) error {
		return all(tape, ps, errors.Join(ps[:1].Release(), ps.ReleaseContext(ctx)))
	})},
	{Of: "NewParameter Parameter.SetName Parameter.Attach Parameter.CanAttach", Make: func(t testing.TB, m *failing) failtest.Trial {
		x, err := tensor.FromSlice(m.Ctx, m.RT, []float64{1, 2})
		require.NoError(t, err)
		var p *autograd.Parameter
		return failtest.Trial{
			Do: func(context.Context) (err error) {
				if p, err = autograd.NewParameter(x); err != nil {
					return err
				}
				a := new(testAttachment)
				return errors.Join(p.SetName("layer.weight"), p.CanAttach(a), p.Attach(a))
			},
			See:  func() any { return []any{p.Name(), x.Label()} },
			Undo: x.Release,
		}
	}},
	{Of: "Tape.Leaf Upload", Varies: true, Make: func(t testing.TB, m *failing) failtest.Trial {
		x, err := tensor.FromSlice(m.Ctx, m.RT, []float64{1, 2})
		require.NoError(t, err)
		tape := autograd.NewTape(m.Ctx, m.RT)
		var leaf variable
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				_ = tape.Reset(ctx) // the error that was returned already
				v := tape.Leaf(x)
				if _, err := tape.Backward(tape.Sum(tape.Mul(v, autograd.Upload(tape, []float64{3, 4})))); err != nil {
					return err
				}
				leaf = v
				return nil
			},
			See:  func() any { return m.Numbers(leaf.Grad()) },
			Undo: func() error { return errors.Join(tape.Close(), x.Release()) },
		}
	}},
	{Of: "Tape.Backward of gradients that share memory", Make: func(t testing.TB, m *failing) failtest.Trial {
		ps := m.Operands(tensor.Float64, matrix, matrix, matrix, matrix)
		return once(m, ps, func(t onTape, vs []variable) error {
			_, err := t.Backward(t.Sum(t.Add(t.Add(vs[0], vs[1]), t.Add(vs[2], vs[3]))))
			return err
		})
	}},
	{Of: "Tape.Backward of 16 bits, of parameters that are read twice", Partly: addedTo, Make: func(t testing.TB, m *failing) failtest.Trial {
		ps := m.Operands(tensor.Float32, matrix, matrix)
		m.Differentiate(ps[:1])
		return ontoFirst(once(m, ps, func(t onTape, _ []variable) error {
			if err := t.Reset(t.Context()); err != nil { // it has read the parameters in float32
				return err
			}
			t.SetComputeDtype(tensor.BFloat16)
			vs := tapetest.ParamsOf(t, ps)
			_, err := t.Backward(t.Sum(t.Mul(t.Mul(vs[0], vs[0]), t.Mul(vs[1], t.Exp(vs[1])))))
			return err
		}), ps)
	}},
	{Of: "Variable.Item", Varies: true, Make: func(t testing.TB, m *failing) failtest.Trial {
		ps := m.Operands(tensor.Float64, matrix)
		var x float64
		trial := once(m, ps, func(t onTape, vs []variable) error {
			v := t.Sum(vs[0])
			y := v.Item()
			if t.Err() == nil {
				x = y
			}
			return t.Err()
		})
		trial.See = func() any { return x }
		return trial
	}},
	{Of: "Tape.Backward with hooks", Make: func(t testing.TB, m *failing) failtest.Trial {
		ps, w := m.Operands(tensor.Float64, matrix, matrix), failtest.Writer(m.Faults, io.Discard)
		h := &hears{call: func() error {
			_, err := w.Write([]byte("an event"))
			return err
		}}
		return m.OnTape(tapetest.TapeTrial{Parameters: ps, Undo: ps.Release, Do: func(t onTape) variable {
			vs := tapetest.ParamsOf(t, ps)
			t.Hook(h)
			return remat.Checkpoint(t, func() variable { return t.Mul(t.Exp(vs[0]), vs[1]) })
		}})
	}},
	{Of: "Tape.AssignGrad", Partly: map[failtest.Kind]string{
		failtest.Failed: "the hook has assigned the gradients that were final", failtest.OutOfMemory: "as failed", failtest.Ended: "as failed",
	}, Make: func(t testing.TB, m *failing) failtest.Trial {
		ps := m.Operands(tensor.Float64, matrix, matrix)
		trial := once(m, ps, func(t onTape, vs []variable) error {
			t.Hook(new(assigns))
			_, err := t.Backward(t.Sum(t.Mul(t.Exp(vs[0]), t.Exp(vs[1]))))
			return err
		})
		trial.Left = func(before any, err error) error {
			for _, p := range ps {
				if p.Grad() != nil && p.Grad().Elements() != 6 {
					return fmt.Errorf("a gradient of shape %v: %w", p.Grad().Shape(), err)
				}
			}
			return nil
		}
		return trial
	}},
}

// captureRows are what captures do. They need a cache.
var captureRows = []failtest.Row[*failing]{
	{Of: "Tape.Backward in a capture", Make: captured(func(*failing, autograd.Parameters) {})},
	{Of: "Tape.Backward in a capture, onto gradients", Make: captured((*failing).Differentiate)},
}

func init() {
	for name, loss := range lossesOfTwo(nil) {
		if name != "entropy" { // which needs labels
			tapeRows = append(tapeRows, failtest.Row[*failing]{Of: "Tape.Backward " + name, Partly: addedTo, Make: ontoGradients(loss)})
		}
	}
}

// TestTapesFail: whichever driver call, allocation or check of a context fails, what tapes and
// parameters do has done all or nothing, and succeeds afterwards.
func TestTapesFail(t *testing.T) {
	if !testing.Short() {
		t.Run("cached", func(t *testing.T) { tapetest.FailingSuite(t, tapeRows) })
	}
	t.Run("uncached", func(t *testing.T) { tapetest.UncachedSuite(t, tapeRows) })
	t.Run("captured", func(t *testing.T) { tapetest.FailingSuite(t, captureRows) })
}
