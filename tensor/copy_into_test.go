package tensor

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// TestCopyInto compares random parts of random shapes with a loop over their elements.
func TestCopyInto(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	for trial := range 40 {
		random := rand.New(rand.NewPCG(uint64(trial), 61))
		shape := make([]int, 1+random.IntN(4))
		for i := range shape {
			shape[i] = 1 + random.IntN(5)
		}
		axis := random.IntN(len(shape))
		part := slices.Clone(shape)
		part[axis] = random.IntN(shape[axis] + 1)
		start := random.IntN(shape[axis] - part[axis] + 1)
		whole, values := make([]int32, elements(shape)), make([]int32, elements(part))
		for i := range whole {
			whole[i] = int32(i)
		}
		for i := range values {
			values[i] = int32(-1 - i)
		}
		dst, src := put(r, whole, shape...), put(r, values, part...)
		version := dst.Version()
		require.NoError(t, r.CopyInto(r.ctx, dst, axis-len(shape)*random.IntN(2), start, src))
		strides := plan.Strides(shape)
		for i := range values {
			at, rest := start*strides[axis], i
			for d := len(part) - 1; d >= 0; d-- {
				at += rest % part[d] * strides[d]
				rest /= part[d]
			}
			whole[at] = values[i]
		}
		got, err := ToSlice[int32](r.ctx, dst, nil)
		require.NoError(t, err)
		require.Equal(t, whole, got, "%v from %d on into dimension %d of %v", part, start, axis, shape)
		require.Equal(t, len(values) > 0, dst.Version() > version, "the write counts")
	}
}

func TestCopyIntoRefuses(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, make([]float32, 6), 2, 3)
	for _, c := range []struct {
		axis, start int
		src         *Tensor
		want        error
	}{
		{1, 3, put(r, make([]float32, 2), 2, 1), ErrShape},
		{1, -1, put(r, make([]float32, 2), 2, 1), ErrShape},
		{0, 0, put(r, make([]float32, 2), 2, 1), ErrShape},
		{1, 0, put(r, make([]float32, 2), 2), ErrShape},
		{2, 0, put(r, make([]float32, 2), 2, 1), ErrShape},
		{1, 0, put(r, make([]float64, 2), 2, 1), ErrDtype},
		{0, 0, x, ErrInvalid},
		{0, 0, nil, ErrInvalid},
	} {
		require.ErrorIs(t, r.CopyInto(r.ctx, x, c.axis, c.start, c.src), c.want)
	}
}

// TestAttentionOfKeysInUse is the attention of the first keys and values. The others are NaN.
func TestAttentionOfKeysInUse(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	random := rand.New(rand.NewPCG(3, 62))
	for range 20 {
		batch, l, e, n := 1+random.IntN(4), 1+random.IntN(40), 1+random.IntN(70), 1+random.IntN(70)
		s := 1 + random.IntN(40)
		capacity := s + random.IntN(40)
		full := func(rows, cols int) (all, first *Tensor) {
			values, some := make([]float32, 0, batch*rows*cols), make([]float32, 0, batch*s*cols)
			for range batch {
				for i := range rows * cols {
					v := float32(random.NormFloat64())
					if i < s*cols {
						some = append(some, v)
					} else {
						v = float32(math.NaN())
					}
					values = append(values, v)
				}
			}
			return put(r, values, batch, rows, cols), put(r, some, batch, s, cols)
		}
		k, fewK := full(capacity, e)
		v, fewV := full(capacity, n)
		values := make([]float32, batch*l*e)
		for i := range values {
			values[i] = float32(random.NormFloat64())
		}
		q, causal := put(r, values, batch, l, e), random.IntN(2) == 0
		want, _, err := r.ScaledDotProductAttention(r.ctx, q, fewK, fewV, nil, AttentionConfig{Causal: causal})
		require.NoError(t, err)
		got, ours, err := r.ScaledDotProductAttention(r.ctx, q, k, v, nil, AttentionConfig{Causal: causal, Keys: s})
		require.NoError(t, err)
		x, err := ToSlice[float32](r.ctx, want, nil)
		require.NoError(t, err)
		y, err := ToSlice[float32](r.ctx, got, nil)
		require.NoError(t, err)
		require.Equal(t, x, y)
		_, err = r.ScaledDotProductAttentionGrad(r.ctx, got, got, ours, q, k, v, nil, AttentionConfig{Keys: s}, false)
		require.ErrorIs(t, err, ErrInvalid)
	}
}
