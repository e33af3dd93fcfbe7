package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestNormOnto: the gradient of a norm's argument is added to that of the residual connection, in
// its memory if that is exclusive, and the result is the sum of both.
func TestNormOnto(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	sums := 0
	stream, err := b.Dev.NewStream(device.StreamOptions{Launching: func(_ device.Stream, name string) func(error) {
		if name == "add" {
			sums++
		}
		return nil
	}})
	require.NoError(t, err)
	rt, err := tensor.NewRuntime(b.Cache, b.RT.Pool(), stream)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	values := func(n int, f float64) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(float64(i*7%11)*f - 1)
		}
		return v
	}
	const rows, cols = 5, 6
	made := func(f float64) *tensor.Tensor {
		x, err := tensor.FromSlice(b.Ctx, rt, values(rows*cols, f), rows, cols)
		require.NoError(t, err)
		return x
	}
	x, q, c := made(0.3), made(0.2), made(0.5)
	norm := func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		return t.LayerNorm(x, nil, nil, 0, cols)
	}
	gradients := func(f func(t *autograd.Tape, x, q *autograd.Variable) *autograd.Variable) (of [2][]float32) {
		tape := autograd.NewTape(b.Ctx, rt)
		leaves := [2]*autograd.Variable{tape.Leaf(x), tape.Leaf(q)}
		y := f(tape, tape.AddScalar(leaves[0], 1), tape.AddScalar(leaves[1], 1))
		sums = 0
		_, err := tape.Backward(tape.Sum(tape.Mul(y, tape.Input(c))))
		require.NoError(t, err)
		for i, l := range leaves {
			if of[i] = make([]float32, rows*cols); l.Grad() != nil {
				of[i] = tapetest.Read[float32](b, l.Grad())
			}
		}
		require.NoError(t, tape.Close())
		return of
	}
	around := gradients(func(t *autograd.Tape, x, q *autograd.Variable) *autograd.Variable { return t.Add(x, q) })
	for name, f := range map[string]func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable{
		"a norm":                   norm,
		"a norm and what reads it": func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Tanh(norm(t, x)) },
		"a norm of the norm":       func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return norm(t, t.Tanh(norm(t, x))) },
		"a norm that is read by more": func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			n := norm(t, x)
			return t.Mul(n, t.Tanh(n))
		},
	} {
		through := gradients(func(t *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable { return f(t, x) })
		for shape, all := range map[string]func(t *autograd.Tape, x, q *autograd.Variable) *autograd.Variable{
			"around": func(t *autograd.Tape, x, q *autograd.Variable) *autograd.Variable { return t.Add(t.Add(x, f(t, x)), q) },
			"around, and another": func(t *autograd.Tape, x, q *autograd.Variable) *autograd.Variable {
				n := f(t, x)
				return t.Add(t.Add(x, q), n)
			},
			"around alone": func(t *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable { return t.Add(x, f(t, x)) },
			"first":        func(t *autograd.Tape, x, q *autograd.Variable) *autograd.Variable { return t.Add(f(t, x), t.Add(x, q)) },
		} {
			got := gradients(all)
			if _, ok := b.Dev.(*host.Device); !ok && shape == "around alone" && name == "a norm and what reads it" {
				require.Zero(t, sums, "launches that add gradients")
			}
			for i := range got {
				want := make([]float32, rows*cols)
				for k := range want {
					if want[k] = through[i][k]; i == 0 || shape != "around alone" {
						want[k] += around[i][k]
					}
				}
				require.InDeltaSlice(t, want, got[i], 1e-5, "%s, %s, of %d", name, shape, i)
			}
		}
	}
	for _, r := range []*tensor.Tensor{x, q, c} {
		require.NoError(t, r.Release())
	}
}
