package autograd_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestGarbageOfOperations: on a tape that is reset, an operation of one kernel each way makes no
// object of the Go heap, also called from another package. The compiler may inline the method into
// that package, and then does not prove that the operands stay on the stack.
func TestGarbageOfOperations(t *testing.T) {
	skipWhereChecksMakeObjects(t)
	b := tapetest.OpenIdle(t)
	matrix, picture := tapetest.Upload(b, make([]float32, 6), 2, 3), tapetest.Upload(b, make([]float32, 16), 1, 1, 4, 4)
	index := tapetest.Upload(b, []int32{0, 1})
	conv, pool, last := tensor.ConvConfig{}, tensor.PoolingConfig{Kernel: []int{2, 2}}, []int{3}
	tape := autograd.NewTape(b.Ctx, b.RT)
	objects := func(name string, op func(t *autograd.Tape, x, p, i *autograd.Variable) *autograd.Variable) (n float64) {
		step := func() {
			y := op(tape, tape.Leaf(matrix), tape.Leaf(picture), tape.Input(index))
			if _, err := tape.Backward(tape.Sum(y)); err != nil {
				require.NoError(t, err, name)
			}
			if err := tape.Reset(b.Ctx); err != nil {
				require.NoError(t, err, name)
			}
		}
		for range 3 {
			step()
		}
		n = math.Inf(1)
		for range 5 { // the garbage collector empties pools now and then
			n = min(n, testing.AllocsPerRun(5, step))
		}
		return n
	}
	without := objects("none", func(_ *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return x })
	for name, op := range map[string]func(t *autograd.Tape, x, p, i *autograd.Variable) *autograd.Variable{
		"Add":       func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.Add(x, x) },
		"Sub":       func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.Sub(x, x) },
		"Mul":       func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.Mul(x, x) },
		"Div":       func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.Div(x, x) },
		"Neg":       func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.Neg(x) },
		"AddScalar": func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.AddScalar(x, 2) },
		"MulScalar": func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.MulScalar(x, 2) },
		"PowScalar": func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.PowScalar(x, 2) },
		"ReLU":      func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.ReLU(x) },
		"ELU":       func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.ELU(x, 1) },
		"Softplus":  func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.Softplus(x, 1, 20) },
		"LeakyReLU": func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.LeakyReLU(x, 0.1) },
		"Clamp":     func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.Clamp(x, -1, 1) },
		"Tril":      func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.Tril(x, 0) },
		"MatMul": func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable {
			return t.MatMul(x, t.Transpose(x, 0, 1))
		},
		"Linear":  func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.Linear(x, x, nil) },
		"Softmax": func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.Softmax(x) },
		"LayerNorm": func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable {
			return t.LayerNorm(x, nil, nil, 0, last...)
		},
		"RMSNorm": func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable {
			return t.RMSNorm(x, nil, 0, last...)
		},
		"GroupNorm": func(t *autograd.Tape, _, p, _ *autograd.Variable) *autograd.Variable {
			return t.GroupNorm(p, nil, nil, 1, 0)
		},
		"Embedding": func(t *autograd.Tape, x, _, i *autograd.Variable) *autograd.Variable {
			return t.Embedding(i, x, tensor.EmbeddingConfig{})
		},
		"Cat": func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable { return t.Cat(0, x, x) },
		"MaxPool2d": func(t *autograd.Tape, _, p, _ *autograd.Variable) *autograd.Variable {
			return t.MaxPool2d(p, pool)
		},
		"AvgPool2d": func(t *autograd.Tape, _, p, _ *autograd.Variable) *autograd.Variable {
			return t.AvgPool2d(p, pool)
		},
		"Conv2d": func(t *autograd.Tape, _, p, _ *autograd.Variable) *autograd.Variable {
			return t.Conv2d(p, p, nil, conv)
		},
		"QuickGELU": func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable {
			return opQuickGELU.Apply(t, quickGELU{2}, x)
		},
		"Frame": func(t *autograd.Tape, x, _, _ *autograd.Variable) *autograd.Variable {
			return t.Frame(func() *autograd.Variable { return t.Exp(x) })
		},
	} {
		assert.LessOrEqual(t, objects(name, op), without, name)
	}
	require.NoError(t, tape.Close())
}
