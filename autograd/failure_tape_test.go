package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// tapeRows are the calls of tapes and parameters other than operations.
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
	{Of: "NewParameter Named.SetName Parameter.Attach Parameter.CanAttach", Make: func(t testing.TB, m *failing) failtest.Trial {
		x, err := tensor.FromSlice(m.Ctx, m.RT, []float64{1, 2})
		require.NoError(t, err)
		var p *autograd.Parameter
		return failtest.Trial{
			Do: func(context.Context) (err error) {
				if p, err = autograd.NewParameter(x); err != nil {
					return err
				}
				a := new(testAttachment)
				return errors.Join(autograd.Named{Name: "layer.weight", Parameter: p}.SetName(), p.CanAttach(a), p.Attach(a))
			},
			See:  func() any { return []any{p.Name(), x.Label()} },
			Undo: x.Release,
		}
	}},
	{Of: "DetectAnomaly", Make: func(t testing.TB, m *failing) failtest.Trial {
		ps := m.Operands(tensor.Float64, []int{2, 3})
		return m.OnTape(tapetest.TapeTrial{Parameters: ps, Undo: ps.Release, Do: func(t onTape) variable {
			autograd.DetectAnomaly(t)
			return t.Exp(tapetest.ParamsOf(t, ps)[0])
		}})
	}},
	{Of: "Tape.Leaf Upload", Make: func(t testing.TB, m *failing) failtest.Trial {
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
	{Of: "Variable.Item", Make: func(t testing.TB, m *failing) failtest.Trial {
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

// captureRows are captures. They need a cache.
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

// TestTapesFail: whichever driver call, allocation or check of a context fails, a call of a tape or
// parameter takes full effect or none, and succeeds afterwards.
func TestTapesFail(t *testing.T) {
	if !testing.Short() {
		t.Run("cached", func(t *testing.T) { tapetest.FailingSuite(t, tapeRows) })
	}
	t.Run("uncached", func(t *testing.T) { tapetest.UncachedSuite(t, tapeRows) })
	t.Run("captured", func(t *testing.T) { tapetest.FailingSuite(t, captureRows) })
}
