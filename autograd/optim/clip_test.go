package optim_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestClipGradNorm: norms of several gradients, some of them missing, that can be computed by hand.
func TestClipGradNorm(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	ps := autograd.Parameters{{Name: "a", Parameter: b.Parameter(1)}, {Name: "none", Parameter: b.Parameter(1)}, {Name: "b", Parameter: b.Parameter(1)}}
	grads := func() {
		ps[0].SetGrad(tapetest.Upload(b, []float64{3, 0}))
		ps[2].SetGrad(tapetest.Upload(b, []float64{-4}))
	}
	for _, c := range []struct{ norm, want float64 }{
		{2, 5}, {1, 7}, {math.Inf(1), 4}, {math.Inf(-1), 0}, {0, 2}, {3, math.Cbrt(27 + 64)},
	} {
		grads()
		total, err := optim.ClipGradNormOf(b.Ctx, ps, 0.5, c.norm)
		require.NoError(t, err)
		assert.InDelta(t, c.want, tapetest.Read[float64](b, total)[0], 1e-12, "norm %v", c.norm)
		require.NoError(t, total.Release())
		scale := math.Min(1, 0.5/(c.want+1e-6))
		assert.Equal(t, uint64(1), ps[0].Grad().Version(), "it may have been scaled")
		assert.InDelta(t, 3*scale, tapetest.Read[float64](b, ps[0].Grad())[0], 1e-12)
		assert.InDelta(t, -4*scale, tapetest.Read[float64](b, ps[2].Grad())[0], 1e-12)
	}
	grads()
	total, err := optim.ClipGradNormOf(b.Ctx, ps, math.Inf(1))
	require.NoError(t, err)
	assert.Equal(t, 5.0, tapetest.Read[float64](b, total)[0])
	require.NoError(t, total.Release())
	assert.Equal(t, []float64{3, 0}, tapetest.Read[float64](b, ps[0].Grad()))
	assert.Zero(t, ps[0].Grad().Version())
	require.NoError(t, optim.ClipGradValue(b.Ctx, ps, 3.5))
	assert.Equal(t, []float64{-3.5}, tapetest.Read[float64](b, ps[2].Grad()))
	assert.Equal(t, uint64(1), ps[2].Grad().Version(), "a tape that saved it would know")

	for _, wrong := range []float64{-1, math.NaN()} {
		_, err := optim.ClipGradNormOf(b.Ctx, ps, wrong)
		assert.ErrorIs(t, err, autograd.ErrInvalid)
		assert.ErrorIs(t, optim.ClipGradValue(b.Ctx, ps, wrong), autograd.ErrInvalid)
	}
	_, err = optim.ClipGradNormOf(b.Ctx, ps, 1, math.NaN())
	assert.ErrorIs(t, err, autograd.ErrInvalid)
	_, err = optim.ClipGradNormOf(b.Ctx, ps, 1, 2, 2)
	assert.ErrorIs(t, err, autograd.ErrInvalid)
	_, err = optim.ClipGradNormOf(b.Ctx, autograd.Parameters(nil), 1)
	assert.ErrorIs(t, err, autograd.ErrInvalid)
	assert.ErrorIs(t, optim.ClipGradValue(b.Ctx, autograd.Parameters{{Name: "nil", Parameter: nil}}, 1), autograd.ErrInvalid)
	live := b.Live()
	total, err = optim.ClipGradNormOf(b.Ctx, ps[1:2], 1)
	require.NoError(t, err)
	assert.Equal(t, []float32{0}, tapetest.Read[float32](b, total), "no gradient at all")
	require.NoError(t, total.Release())
	assert.Equal(t, live, b.Live(), "nothing is left")
	ps[0].SetGrad(nil)
	ps[2].SetGrad(nil)
}

// TestClipGradNormOfNaN: a NaN in a gradient makes all gradients NaN, as in PyTorch.
func TestClipGradNormOfNaN(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for _, norm := range []float64{2, 1, math.Inf(1), math.Inf(-1), 3} {
		ps := autograd.Parameters{{Name: "a", Parameter: b.Parameter(1)}, {Name: "b", Parameter: b.Parameter(1)}}
		ps[0].SetGrad(tapetest.Upload(b, []float32{float32(math.NaN())}))
		ps[1].SetGrad(tapetest.Upload(b, []float32{1, 2}))
		total, err := optim.ClipGradNormOf(b.Ctx, ps, 1, norm)
		require.NoError(t, err)
		assert.Equal(t, tensor.Float32, total.Dtype())
		assert.True(t, math.IsNaN(float64(tapetest.Read[float32](b, total)[0])), norm)
		assert.True(t, math.IsNaN(float64(tapetest.Read[float32](b, ps[1].Grad())[1])), norm)
		require.NoError(t, total.Release())
		ps[0].SetGrad(nil)
		ps[1].SetGrad(nil)
	}
}
