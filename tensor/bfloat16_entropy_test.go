package tensor

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// TestBFloat16EntropyIsThatOfFloat32, for the same logits, with all options: the loss is
// bit-identical, and the gradient except for its rounding. On the host it allocates nothing,
// because the logits are the largest tensor of a step.
func TestBFloat16EntropyIsThatOfFloat32(t *testing.T) {
	r := newRig(t, 1<<24).scoped()
	cisterntest.OnlyHost(t, r.dev, "a GPU sums in an order of its own")
	random := rand.New(rand.NewPCG(16, 17))
	for i := range 60 {
		n, classes := 1+random.IntN(9), 1+random.IntN(40)
		if i%20 == 0 {
			classes = 3000 // more than a row of exponentials
		}
		shape, rows := []int{n, classes}, []int{n}
		for range random.IntN(3) {
			d := 1 + random.IntN(3)
			shape, rows = append(shape, d), append(rows, d)
		}
		half := halves(random, elements(shape), false)
		wide := make([]float32, len(half))
		for i, v := range half {
			wide[i] = 3 * v.Float32()
			half[i] = ToBF16(wide[i])
			wide[i] = half[i].Float32()
		}
		labels := make([]int64, elements(rows))
		for i := range labels {
			if labels[i] = int64(random.IntN(classes)); random.IntN(6) == 0 {
				labels[i] = 1000_000 // ignored
			}
		}
		options := []LossOption{IgnoreIndex(1000_000), []LossOption{ReduceMean, ReduceSum, ReduceNone}[random.IntN(3)]}
		if random.IntN(2) == 0 {
			options = append(options, LabelSmoothing(random.Float64()))
		}
		if random.IntN(2) == 0 {
			weights := make([]float32, classes)
			for i := range weights {
				weights[i] = random.Float32()
			}
			options = append(options, Weight(put(r, weights)))
		}
		on := put(r, labels, rows...)
		if random.IntN(2) == 0 {
			narrow := make([]int32, len(labels))
			for i, l := range labels {
				narrow[i] = int32(l)
			}
			on = put(r, narrow, rows...)
		}
		logits, wideLogits := put(r, half, shape...), put(r, wide, shape...)
		want, err := r.CrossEntropy(r.ctx, wideLogits, on, options...)
		require.NoError(t, err)
		dloss, err := r.MulScalar(r.ctx, want, 0.3)
		require.NoError(t, err)
		wantGrad, err := r.CrossEntropyGrad(r.ctx, nil, wideLogits, on, dloss, options...)
		require.NoError(t, err)

		require.NoError(t, r.Synchronize(r.ctx))
		r.cache.ResetPeakStats()
		before := r.cache.MemoryAllocated()
		got, err := r.CrossEntropy(r.ctx, logits, on, options...)
		require.NoError(t, err)
		grad, err := r.CrossEntropyGrad(r.ctx, logits, logits, on, dloss, options...)
		require.NoError(t, err)
		assert.LessOrEqual(t, r.cache.MaxMemoryAllocated()-before, int64(2*512), "the losses, and the word for faults")
		what := fmt.Sprintf("case %d, logits %v", i, shape)
		wants, gots := get[float32](r, want, nil), get[float32](r, got, nil)
		for i, v := range wants {
			require.True(t, v == gots[i] || v != v && gots[i] != gots[i], "%s: %v and %v", what, v, gots[i])
		}
		rounded, err := r.Convert(r.ctx, wantGrad, BFloat16)
		require.Equal(t, get[BF16](r, rounded, err), get[BF16](r, grad, nil), what)
	}
}
