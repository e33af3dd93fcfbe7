package tensor

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestCrossEntropyWithGradIsBoth, bit for bit, where the device does both at once.
func TestCrossEntropyWithGradIsBoth(t *testing.T) {
	r := newRig(t, 256<<20).scoped()
	_, fuses := r.dev.(device.ModuleLoader)
	random := rand.New(rand.NewPCG(3, 1))
	read := func(x *Tensor) []byte {
		data, err := ToSlice[float32](r.ctx, x, nil)
		require.NoError(t, err)
		return bytesOf(data)
	}
	one, err := FromSlice(r.ctx, r.Runtime, []float32{1})
	require.NoError(t, err)
	for i := range 60 {
		rows, classes, inner := 1+random.IntN(300), 1+random.IntN(40), 1+random.IntN(3)
		if i%6 == 0 {
			classes = 1 + random.IntN(300)
		}
		shape, places := []int{rows, classes, inner}, rows*inner
		x, labels, weights := make([]float32, places*classes), make([]int32, places), make([]float32, classes)
		for i := range x {
			x[i] = float32(random.NormFloat64() * 5)
		}
		for j := range labels {
			labels[j] = int32(random.IntN(classes))
			if random.IntN(7) == 0 && i%5 != 4 {
				labels[j] = -100
			}
		}
		for i := range weights {
			weights[i] = random.Float32() + 0.1
		}
		logits, err := FromSlice(r.ctx, r.Runtime, x, shape...)
		require.NoError(t, err)
		on, err := FromSlice(r.ctx, r.Runtime, labels, rows, inner)
		require.NoError(t, err)
		weight, err := FromSlice(r.ctx, r.Runtime, weights, classes)
		require.NoError(t, err)
		options := []LossOption{nil, ReduceSum, Weight(weight), LabelSmoothing(0.1), IgnoreIndex(0)}[i%5 : i%5+1]
		if i%5 == 0 {
			options = nil
		} else if i%2 == 0 {
			options = append(slices.Clone(options), LabelSmoothing(0.2), Weight(weight))
		}
		loss, grad, err := r.CrossEntropyWithGrad(r.ctx, logits, on, options...)
		require.NoError(t, err)
		want, err := r.CrossEntropy(r.ctx, logits, on, options...)
		require.NoError(t, err)
		require.Equal(t, read(want), read(loss), "%v", shape)
		if !fuses || classes > 256 || places > 4096 {
			require.Nil(t, grad)
			continue
		}
		wantGrad, err := r.CrossEntropyGrad(r.ctx, nil, logits, on, one, options...)
		require.NoError(t, err)
		require.Equal(t, shape, []int(grad.Shape()))
		require.Equal(t, read(wantGrad), read(grad), "%v", shape)
	}
}
