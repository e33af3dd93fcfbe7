package optim_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestInBackwardWaitsForReaders: a parameter whose value a later step reads, in any way, is updated
// after that step.
func TestInBackwardWaitsForReaders(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	labels := tapetest.Upload(b, []int32{1, 0})
	// Only the last operation contributes to p's gradient. q's gradient is final last, and needs
	// p's value.
	late := func(first func(tape *autograd.Tape, p *autograd.Parameter, q *autograd.Variable) *autograd.Variable) func(tape *autograd.Tape, p, q *autograd.Parameter) *autograd.Variable {
		return func(tape *autograd.Tape, p, q *autograd.Parameter) *autograd.Variable {
			h := tape.Square(first(tape, p, tape.Square(tape.Param(q))))
			return tape.Sum(tape.Mul(h, tape.Param(p)))
		}
	}
	for name, f := range map[string]func(tape *autograd.Tape, p, q *autograd.Parameter) *autograd.Variable{
		"used twice": late(func(tape *autograd.Tape, p *autograd.Parameter, q *autograd.Variable) *autograd.Variable {
			return tape.Mul(q, tape.Param(p))
		}),
		"times itself": func(tape *autograd.Tape, p, q *autograd.Parameter) *autograd.Variable {
			h := tape.Tanh(tape.Param(q))
			return tape.Sum(tape.Add(h, tape.Mul(tape.Param(p), tape.Param(p))))
		},
		"by its own step": func(tape *autograd.Tape, p, q *autograd.Parameter) *autograd.Variable {
			return tape.Sum(tape.Linear(tape.Square(tape.Param(q)), tape.Param(p), nil))
		},
		"detached": late(func(tape *autograd.Tape, p *autograd.Parameter, q *autograd.Variable) *autograd.Variable {
			return tape.Mul(q, tape.Detach(tape.Param(p)))
		}),
		"an input": late(func(tape *autograd.Tape, p *autograd.Parameter, q *autograd.Variable) *autograd.Variable {
			return tape.Mul(q, tape.Input(p.Value()))
		}),
		"a view": late(func(tape *autograd.Tape, p *autograd.Parameter, q *autograd.Variable) *autograd.Variable {
			return tape.Mul(q, tape.Reshape(tape.Param(p), 2, 2))
		}),
		"in a checkpoint": late(func(tape *autograd.Tape, p *autograd.Parameter, q *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(tape, func() *autograd.Variable { return tape.Mul(q, tape.Param(p)) })
		}),
		"detached in a checkpoint": late(func(tape *autograd.Tape, p *autograd.Parameter, q *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(tape, func() *autograd.Variable { return tape.Mul(q, tape.Detach(tape.Param(p))) })
		}),
		"an input in a checkpoint": late(func(tape *autograd.Tape, p *autograd.Parameter, q *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(tape, func() *autograd.Variable { return tape.Mul(q, tape.Input(p.Value())) })
		}),
		"an input in checkpoints": late(func(tape *autograd.Tape, p *autograd.Parameter, q *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(tape, func() *autograd.Variable {
				return tape.Mul(q, remat.Checkpoint(tape, func() *autograd.Variable { return tape.Mul(q, tape.Input(p.Value())) }))
			})
		}),
		"weights of a loss": late(func(tape *autograd.Tape, p *autograd.Parameter, q *autograd.Variable) *autograd.Variable {
			return tape.BCEWithLogits(q, tape.Detach(q), tensor.Weight(p.Value()), tensor.ReduceNone)
		}),
		"weights of a loss in a checkpoint": late(func(tape *autograd.Tape, p *autograd.Parameter, q *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(tape, func() *autograd.Variable {
				return tape.BCEWithLogits(q, tape.Detach(q), tensor.Weight(p.Value()), tensor.ReduceNone)
			})
		}),
		"weights of classes in a checkpoint": func(tape *autograd.Tape, p, q *autograd.Parameter) *autograd.Variable {
			h := remat.Checkpoint(tape, func() *autograd.Variable {
				row, err := b.RT.Rows(b.Ctx, p.Value(), 0, 1)
				require.NoError(t, err)
				defer row.Release()
				weights, err := b.RT.Reshape(b.Ctx, row, 2)
				require.NoError(t, err)
				defer weights.Release()
				return tape.CrossEntropy(tape.Square(tape.Param(q)), labels, tensor.Weight(weights))
			})
			return tape.Sum(tape.Mul(tape.Square(h), tape.Param(p)))
		},
		"as a gradient": func(tape *autograd.Tape, p, q *autograd.Parameter) *autograd.Variable {
			u := tape.Square(tape.Param(q))
			s := tape.Square(tape.Param(p))
			z := tape.Func("Weighted", []*autograd.Variable{u}, func(c *autograd.Call) (*tensor.Tensor, error) {
				own, err := c.Runtime().Share(c.Context(), p.Value())
				if err != nil {
					return nil, err
				}
				c.Save(own)
				return c.Runtime().Mul(c.Context(), c.Input(0), own)
			}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
				return c.Grads(c.Runtime().Share(c.Context(), c.Saved()[0]))
			})
			return tape.Sum(tape.Add(z, s))
		},
	} {
		for _, half := range []bool{false, true} {
			train := func(piece int64) (values [][]float64) {
				p, q := matrix(b, half, 1), matrix(b, half, 3)
				defer func() { require.NoError(t, errors.Join(p.Release(), q.Release())) }()
				opt, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: p}, {Name: "q", Parameter: q}}, optim.SGDConfig{LR: new(0.125)}))
				require.NoError(t, err)
				for range 2 {
					tape := autograd.NewTape(b.Ctx, b.RT)
					if half {
						tape.SetComputeDtype(tensor.BFloat16)
					}
					loss := f(tape, p, q)
					if piece > 0 {
						optim.InBackward(tape, loss, opt, piece)
					} else {
						optim.Minimize(tape, loss, opt)
					}
					require.NoError(t, tape.Close(), "%s, in pieces of %d bytes", name, piece)
				}
				require.NoError(t, opt.Close())
				return [][]float64{widened(b, p.Value()), widened(b, q.Value())}
			}
			if half && slices.Contains([]string{"as a gradient", "weights of a loss", "weights of a loss in a checkpoint", "weights of classes in a checkpoint"}, name) {
				continue // these operations don't mix dtypes
			}
			want := train(0)
			for _, piece := range []int64{1, 12, 40} { // less and more than a parameter
				require.Equal(t, want, train(piece), "%s, in pieces of %d bytes, bfloat16: %v", name, piece, half)
			}
		}
	}
}

// matrix is a parameter of (2, 2), of float64 or, for half, float32.
func matrix(b *tapetest.Bench, half bool, from float64) *autograd.Parameter {
	b.T.Helper()
	dtype := tensor.Float64
	if half {
		dtype = tensor.Float32
	}
	x, err := b.RT.Full(b.Ctx, from, dtype, 2, 2)
	require.NoError(b.T, err)
	p, err := autograd.NewParameter(x)
	require.NoError(b.T, err)
	return p
}

// widened returns the elements of a float32 or float64 tensor as float64.
func widened(b *tapetest.Bench, x *tensor.Tensor) (all []float64) {
	if x.Dtype() == tensor.Float64 {
		return tapetest.Read[float64](b, x)
	}
	for _, v := range tapetest.Read[float32](b, x) {
		all = append(all, float64(v))
	}
	return all
}
