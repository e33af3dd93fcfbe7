package tensor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEntropiesOfLongRows compares those of float32 with those of float64, which a GPU computes in
// other ways. Rows are long enough for the loops of blocks of 256 and of 512 threads. They and
// their gradients begin at any element, and may be in the same memory.
func TestEntropiesOfLongRows(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 5))
	for _, cols := range []int{257, 300, 1800, 2051, 3100, 3601, 6151} {
		for _, shape := range [][]int{{5, cols}, {2, cols, 2}} {
			for k, place := range [][2]int{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, -1}} {
				r := newRig(t, 64<<20).scoped()
				testLongRows(r, random, shape, place[0], place[1], k%2 == 0)
			}
		}
	}
}

// testLongRows has logits and a gradient that begin at those elements, or a gradient in place.
func testLongRows(r *rig, random *rand.Rand, shape []int, from, to int, options bool) {
	cols, rows := shape[1], append(slices.Clone(shape[:1]), shape[2:]...)
	logits, weights := make([]float32, elements(shape)), make([]float32, cols)
	for i := range logits {
		logits[i] = float32(random.NormFloat64() * []float64{1, 300}[random.IntN(2)])
	}
	for i := range weights {
		weights[i] = random.Float32()
	}
	// NaN and infinities are in two of the rows, also after the last whole pack.
	logits[cols-1], logits[1] = float32(math.NaN()), float32(math.Inf(-1))
	logits[len(logits)-1] = float32(math.Inf([]int{-1, 1}[random.IntN(2)]))
	for i := range cols / 2 { // all elements of a warp
		logits[cols+i] = float32(math.Inf(-1))
	}
	labels, dloss := make([]int32, elements(rows)), make([]float32, elements(rows))
	for i := range labels {
		labels[i], dloss[i] = int32(random.IntN(cols)), random.Float32()
	}
	labels[len(labels)/2] = int32(cols - 1)
	loss, grad := entropies(r, logits, weights, dloss, labels, shape, rows, from, to, options)
	wantLoss, wantGrad := entropies(r, wide(logits), wide(weights), wide(dloss), labels, shape, rows, 0, 0, options)
	what := fmt.Sprintf("%v from %d to %d, options %t", shape, from, to, options)
	requireRounded(r.t, wantLoss, loss, what+": the loss")
	requireRounded(r.t, wantGrad, grad, what+": the gradient")
}

// entropies returns the losses of rows and the gradient of their logits.
func entropies[T float32 | float64](r *rig, logits, weights, dloss []T, labels []int32, shape, rows []int, from, to int, options bool) (loss, grad []T) {
	part := func(data []T, from int) *Tensor {
		x, err := r.Rows(r.ctx, put(r, slices.Concat(make([]T, from), data)), from, from+len(data))
		require.NoError(r.t, err)
		x, err = r.Reshape(r.ctx, x, shape...)
		require.NoError(r.t, err)
		return x
	}
	with := []LossOption{ReduceNone}
	if options {
		with = append(with, LabelSmoothing(0.25), Weight(put(r, weights)))
	}
	x, on := part(logits, from), put(r, labels, rows...)
	dst := x
	if to >= 0 {
		dst = part(make([]T, len(logits)), to)
	}
	y, err := r.CrossEntropy(r.ctx, x, on, with...)
	loss = get[T](r, y, err)
	g, err := r.CrossEntropyGrad(r.ctx, dst, x, on, put(r, dloss, rows...), with...)
	return loss, get[T](r, g, err)
}

func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// requireRounded allows an error of rounding to float32.
func requireRounded(t testing.TB, want []float64, got []float32, what string) {
	require.Len(t, got, len(want), what)
	for i, w := range want {
		g := float64(got[i])
		if g != w && !(math.IsNaN(g) && math.IsNaN(w)) && !(math.Abs(g-w) <= 2e-7*math.Abs(w)+1e-13) {
			require.Equal(t, w, g, "%s: element %d", what, i)
		}
	}
}
