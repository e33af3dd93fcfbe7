package nn_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestMaskedGradients: a layer that reads a LinearReLU's result gives its gradient masked. It is
// masked again only if another operation reads the result too. Gradients equal those of the same
// network of single operations.
func TestMaskedGradients(t *testing.T) {
	ctx := context.Background()
	b := tapetest.Open(t, 64<<20)
	launches := map[string]int{}
	rt := b.Counting(launches)
	in := nn.Init(ctx, rt, nn.Seed(3))
	l, m, k := in.Linear(6, 8), in.Linear(8, 4), in.Linear(8, 4)
	values := make([]float64, 5*6)
	for i := range values {
		values[i] = float64(i*7%13)/6 - 1
	}
	x := in.Tensor(values, 5, 6)
	require.NoError(t, in.Err())
	params := nn.ParametersOf(nn.Sequential{l, m, k})
	for name, f := range map[string]struct {
		of    func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable
		masks int // launches, on the host
		again int // of them not in a product, on a GPU
	}{
		"a layer": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return m.Forward(t, h) }, 1, 0},
		"two layers": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return t.Mul(m.Forward(t, h), k.Forward(t, h))
		}, 2, 0},
		"a layer, and then a sum": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return t.Mul(t.Sum(h), m.Forward(t, h))
		}, 2, 1},
		"a sum, and then a layer": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			y := m.Forward(t, h)
			return t.Mul(t.Sum(h), y)
		}, 2, 1},
		"a table, and then a layer": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			z := t.Embedding(autograd.Upload(t, []int32{0, 3, 3}), h, tensor.EmbeddingConfig{})
			return t.Mul(t.Sum(z), m.Forward(t, h))
		}, 2, 1},
		"a sum": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Sum(h) }, 1, 1},
		"a layer of another's shape": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return k.Forward(t, t.Reshape(h, 5, 1, 8))
		}, 1, 1},
	} {
		gradients := func(dense func(t *autograd.Tape) *autograd.Variable) (all [][]float32) {
			tape := autograd.NewTape(ctx, rt)
			y := f.of(tape, dense(tape))
			clear(launches)
			_, err := tape.Backward(tape.Sum(tape.Square(y)))
			require.NoError(t, err, name)
			for _, p := range params {
				values, err := tensor.ToSlice[float32](ctx, p.Grad(), nil)
				if p.Grad() != nil {
					require.NoError(t, err, name)
				}
				all = append(all, values)
			}
			require.NoError(t, params.ZeroGrad(ctx))
			require.NoError(t, tape.Close())
			return all
		}
		got := gradients(func(t *autograd.Tape) *autograd.Variable {
			return t.LinearReLU(t.Input(x), t.Param(l.Weight), t.Param(l.Bias))
		})
		if _, ok := b.Dev.(*host.Device); ok {
			require.Equal(t, f.masks, launches["relu grad"]+launches["matmul masked"], name)
		} else {
			require.Equal(t, f.again, launches["relu bias grad"], name)
		}
		want := gradients(func(t *autograd.Tape) *autograd.Variable {
			return t.ReLU(t.Linear(t.Input(x), t.Param(l.Weight), t.Param(l.Bias)))
		})
		for i := range want {
			require.InDeltaSlice(t, want[i], got[i], 1e-5, name)
		}
	}
	require.NoError(t, in.Close())
}

// TestMaskedGradientsOfOverwrites: a program may keep and overwrite the result of a checkpoint that
// only a frozen layer reads, because no operation has saved it.
func TestMaskedGradientsOfOverwrites(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(3))
	l := in.Linear(4, 4)
	many := tapetest.Upload(b, []float32{100}, 1)
	x, frozen := in.Tensor([]float64{1, -2, 3, 0.5, 2, 0.25, -1, 4}, 2, 4), in.Tensor([]float64{1, 2, -1, 0.5, 3, -2, 1, 1}, 2, 4)
	require.NoError(t, in.Err())
	gradient := func(overwrite bool) []float32 {
		tape := autograd.NewTape(b.Ctx, b.RT)
		h := remat.Checkpoint(tape, func() *autograd.Variable {
			return tape.LinearReLU(tape.Input(x), tape.Param(l.Weight), tape.Param(l.Bias))
		}).Keep()
		loss := tape.Sum(tape.Linear(h, tape.Input(frozen), nil))
		if overwrite {
			require.NoError(t, b.RT.SubInPlace(b.Ctx, h.Value(), many))
		}
		_, err := tape.Backward(loss)
		require.NoError(t, err)
		g := tapetest.Read[float32](b, l.Weight.Grad())
		require.NoError(t, l.Weight.ZeroGrad(b.Ctx))
		require.NoError(t, l.Bias.ZeroGrad(b.Ctx))
		require.NoError(t, tape.Close())
		return g
	}
	want := gradient(false)
	require.NotZero(t, want)
	require.Equal(t, want, gradient(true))
	require.NoError(t, errors.Join(many.Release(), in.Close()))
}
