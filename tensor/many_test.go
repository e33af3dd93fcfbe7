package tensor

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/fn"
)

// TestManyRowsAndChannels: a GPU's launch has fewer blocks than there are rows or channels. Each is
// computed as without the others.
func TestManyRowsAndChannels(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	const many, part = 4200, 100
	x, dy := spread[float32](many*3, -1, 1), spread[float32](many*3, -2, 3)
	norms := func(from, to int) (all [][]float32) {
		x, dy := put(r, x[3*from:3*to], to-from, 3), put(r, dy[3*from:3*to], to-from, 3)
		y, stats, err := r.Normalize(r.ctx, x, nil, nil, NormConfig{Shape: []int{3}})
		all = append(all, get[float32](r, y, err))
		dx, _, _, err := r.NormalizeGrad(r.ctx, dy, x, nil, stats, NormConfig{Shape: []int{3}}, NormGrads{Input: true})
		all = append(all, get[float32](r, dx, err))
		sum, y, _, err := r.AddNormalize(r.ctx, x, dy, nil, nil, NormConfig{Shape: []int{3}})
		return append(all, get[float32](r, sum, err), get[float32](r, y, err))
	}
	channels := func(from, to int) (all [][]float32) {
		n := to - from
		x, dy := put(r, x[3*from:3*to], 1, n, 3), put(r, dy[3*from:3*to], 1, n, 3)
		y, stats, err := r.BatchNorm(r.ctx, x, nil, nil, BatchNormConfig{Training: true})
		all = append(all, get[float32](r, y, err))
		dx, _, db, err := r.BatchNormGrad(r.ctx, nil, dy, x, nil, stats, BatchNormConfig{Training: true}, NormGrads{Input: true, Bias: true})
		return append(all, get[float32](r, dx, err), get[float32](r, db, err))
	}
	for name, of := range map[string]func(from, to int) [][]float32{"rows": norms, "channels": channels} {
		whole := of(0, many)
		for from := 0; from < many; from += part {
			for i, want := range of(from, from+part) {
				n := len(want) / part
				require.Equal(t, want, whole[i][from*n:(from+part)*n], "%s from %d on, result %d", name, from, i)
			}
		}
	}
}

// TestGELUOfManyElements: on GPUs a thread has several of 2^20 elements and more.
func TestGELUOfManyElements(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	const n = 1<<20 + 3
	data, grads := spread[float32](n, -6, 6), spread[float32](n, -1, 2)
	x, dy := put(r, data), put(r, grads)
	y, err := r.Apply(r.ctx, fn.GELUTanh, x)
	got := get[float32](r, y, err)
	dx, err := r.ApplyGrad(r.ctx, fn.GELUTanh, nil, dy, x)
	slopes := get[float32](r, dx, err)
	for i, v := range data {
		v, g := float64(v), float64(grads[i])
		u := math.Sqrt(2/math.Pi) * (v + 0.044715*v*v*v)
		near := math.Abs(0.5*v*(1+math.Tanh(u))-float64(got[i])) < 1e-6
		slope := 0.5*(1+math.Tanh(u)) + 0.5*v/math.Pow(math.Cosh(u), 2)*math.Sqrt(2/math.Pi)*(1+3*0.044715*v*v)
		near = near && math.Abs(g*slope-float64(slopes[i])) < 2e-6
		require.True(t, near, "element %d, %v, with a gradient of %v: %v and %v", i, v, g, got[i], slopes[i])
	}
}
