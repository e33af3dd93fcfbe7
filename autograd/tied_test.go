package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestTiedEmbeddingAddsToTheGradient of the other layer with the same weights, in its own launch on
// a GPU. The gradient is the sum of those of two layers with separate weights, added to one of an
// earlier step.
func TestTiedEmbeddingAddsToTheGradient(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	launches := map[string]int{}
	rt := b.Counting(launches)
	_, onHost := b.Dev.(device.HostVisible)
	// The last one adds up gradients in float32.
	for _, computes := range []tensor.Dtype{tensor.Float32, tensor.Float64, tensor.BFloat16} {
		dtype := computes
		if computes == tensor.BFloat16 {
			dtype = tensor.Float32
		}
		made := func() *nn.Embedding { // all with the same numbers
			in := nn.Init(b.Ctx, rt, nn.Seed(4), nn.Dtype(dtype))
			e := in.Embedding(7, 5)
			require.NoError(t, in.Err())
			t.Cleanup(func() { require.NoError(t, in.Close()) })
			return e
		}
		tied, reads, head := made(), made(), made()
		step := func(first, last *nn.Embedding) {
			tape := autograd.NewTape(b.Ctx, rt)
			if computes == tensor.BFloat16 {
				tape.SetComputeDtype(computes)
			}
			h := first.Forward(tape, autograd.Upload(tape, []int32{3, 1, 3, 0, 6, 3}))
			y := tape.Linear(tape.Tanh(h), tape.Param(last.Weight), nil)
			clear(launches)
			_, err := tape.Backward(tape.Mean(tape.Square(y)))
			require.NoError(t, err)
			require.NoError(t, tape.Close())
		}
		gradient := func(e *nn.Embedding) []float64 {
			wide, err := rt.Convert(b.Ctx, e.Weight.Grad(), tensor.Float64)
			require.NoError(t, err)
			defer wide.Release()
			values, err := tensor.ToSlice[float64](b.Ctx, wide, nil)
			require.NoError(t, err)
			return values
		}
		sum := func(a, b []float64) []float64 {
			for i := range a {
				if a[i] += b[i]; dtype != tensor.Float64 {
					a[i] = float64(float32(a[i]))
				}
			}
			return a
		}
		step(reads, head)
		want := sum(gradient(head), gradient(reads))
		step(tied, tied)
		require.Equal(t, want, gradient(tied), computes)
		if !onHost && computes != tensor.BFloat16 {
			require.Equal(t, [3]int{1, 0, 0}, [3]int{launches["scan grad onto"], launches["add"], launches["sort index"]}, "%v", launches)
		}
		step(tied, tied)
		require.Equal(t, sum(sum(want, gradient(head)), gradient(reads)), gradient(tied), computes)
	}
}

// TestTableLeavesSharedGradients unchanged: a gradient that another variable shares is copied
// before a table's is added to it.
func TestTableLeavesSharedGradients(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	tape := autograd.NewTape(b.Ctx, b.RT)
	w, v := tape.Leaf(tapetest.Upload(b, []float32{1, 2, 3, 4}, 2, 2)), tape.Leaf(tapetest.Upload(b, []float32{5, 6, 7, 8}, 2, 2))
	rows := tape.Embedding(autograd.Upload(tape, []int32{1, 1}), w, tensor.EmbeddingConfig{})
	y := tape.Add(tape.Sum(tape.Add(w, v)), tape.Sum(rows))
	_, err := tape.Backward(y)
	require.NoError(t, err)
	require.Equal(t, []float32{1, 1, 3, 3}, tapetest.Read[float32](b, w.Grad()))
	require.Equal(t, []float32{1, 1, 1, 1}, tapetest.Read[float32](b, v.Grad()))
	require.NoError(t, tape.Close())
}
