package tensor

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStepsOfManySizes: each of many parameters has its own elements, gradient, momentum and rate.
// Their sizes are around those of a block of a GPU, with empty ones between them.
func TestStepsOfManySizes(t *testing.T) {
	t.Run("float32", func(t *testing.T) { testStepSizes[float32](t, Float32) })
	t.Run("float64", func(t *testing.T) { testStepSizes[float64](t, Float64) })
	t.Run("gradients of bfloat16", func(t *testing.T) { testStepSizes[float32](t, BFloat16) })
}

func testStepSizes[T float32 | float64](t *testing.T, grad Dtype) {
	for _, count := range []int{1, 2, 12, 47, 48, 49, 100} {
		for _, captured := range []bool{false, true} {
			testStepOfSizes[T](t, grad, count, captured)
		}
	}
}

// testStepOfSizes has numbers whose sums are exact, those of gradients in bfloat16, too.
func testStepOfSizes[T float32 | float64](t *testing.T, grad Dtype, count int, captured bool) {
	r := newRig(t, 64<<20).scoped()
	sizes := []int{1024, 0, 0, 1, 1023, 2048, 1025, 5, 0, 3071, 3072, 0, 0}
	var updates []Update[SGD]
	var params, momentums []stepPart[T]
	for k := range count {
		n := sizes[k%len(sizes)]
		p := newStepPart[T](r, 8, n, func(i int) int { return i + 5000*k })
		g := newStepPart[T](r, 8, n, func(i int) int { return (i*7+k)%200 - 100 })
		m := newStepPart[T](r, 8, n, func(i int) int { return 2 * (i%50 + k) })
		rule := SGD{LR: float64(k + 1), Momentum: 0.5}
		u := Update[SGD]{Rule: rule, P: p.Tensor, G: g.as(r, grad), State: [3]*Tensor{m.Tensor}}
		if captured {
			u.Next = func() SGD { return rule }
		}
		for i := 8; i < 8+n; i++ {
			m.data[i] = m.data[i]/2 + g.data[i]
			p.data[i] -= T(k+1) * m.data[i]
		}
		updates, params, momentums = append(updates, u), append(params, p), append(momentums, m)
	}
	step := func(ctx context.Context) error { return Step(ctx, r.Runtime, updates) }
	if captured {
		require.NoError(t, r.capture(r.ctx, step).Replay(r.ctx))
	} else {
		require.NoError(t, step(r.ctx))
	}
	for k := range count {
		require.True(t, slices.Equal(params[k].data, get[T](r, params[k].whole, nil)), "parameter %d of %d, captured %t", k, count, captured)
		require.True(t, slices.Equal(momentums[k].data, get[T](r, momentums[k].whole, nil)), "momentum %d of %d, captured %t", k, count, captured)
	}
}

// stepPart is n elements of a tensor from one on. data is all elements.
type stepPart[T Element] struct {
	*Tensor
	whole   *Tensor
	data    []T
	from, n int
}

func newStepPart[T float32 | float64](r *rig, from, n int, of func(i int) int) stepPart[T] {
	p := stepPart[T]{data: make([]T, from+n+4), from: from, n: n}
	for i := range p.data {
		p.data[i] = T(of(i - from))
	}
	p.whole = put(r, p.data)
	p.Tensor = p.as(r, p.whole.Dtype())
	return p
}

// as returns the part, or a copy of it if d is not its dtype.
func (p stepPart[T]) as(r *rig, d Dtype) *Tensor {
	whole := p.whole
	if d != whole.Dtype() {
		var err error
		whole, err = r.Convert(r.ctx, whole, d)
		require.NoError(r.t, err)
	}
	part, err := r.Rows(r.ctx, whole, p.from, p.from+p.n)
	require.NoError(r.t, err)
	return part
}

// TestStepsOfArraysAnywhere: results do not depend on the element at which an array begins.
func TestStepsOfArraysAnywhere(t *testing.T) {
	for _, grad := range []Dtype{Float32, BFloat16} {
		var want [][]float32
		for which := range 6 {
			r := newRig(t, 64<<20).scoped()
			var parts []stepPart[float32]
			for i := range 5 {
				from := 0
				if i == which {
					from = 1
				}
				parts = append(parts, newStepPart[float32](r, from, 1500, func(j int) int { return (j + i) % 50 }))
			}
			adam := Adam{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-3, Step: 2}
			require.NoError(t, stepOne(r.ctx, r.Runtime, adam, parts[0].Tensor, parts[1].as(r, grad), parts[2].Tensor, parts[3].Tensor, parts[4].Tensor))
			var got [][]float32
			for _, p := range parts {
				got = append(got, get[float32](r, p.Tensor, nil))
			}
			if want == nil {
				want = got
			}
			require.Equal(t, want, got, "array %d begins at the second element", which)
		}
	}
}
