package tensor

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestBFloat16WithoutCopies: what a GPU does in bfloat16 takes memory for its results, and none for copies of its operands in float32.
func TestBFloat16WithoutCopies(t *testing.T) {
	r := newRig(t, 1<<28).scoped()
	if _, loads := r.dev.(device.ModuleLoader); !loads {
		t.Skip("the host computes on copies")
	}
	random := rand.New(rand.NewPCG(3, 3))
	const rows, cols = 96, 128
	x, y := put(r, halves(random, rows*cols, false), rows, cols), put(r, halves(random, rows*cols, false), rows, cols)
	bias := put(r, halves(random, rows, false), rows)
	labels := make([]int32, rows)
	for i := range labels {
		labels[i] = int32(random.IntN(cols))
	}
	l := put(r, labels, rows)
	dloss := put(r, []float32{1})
	wide := put(r, make([]float32, rows*cols), rows, cols)
	m, v := put(r, make([]float32, rows*cols), rows, cols), put(r, make([]float32, rows*cols), rows, cols)
	scale := put(r, halves(random, cols, false), cols)
	norm := NormConfig{Shape: []int{cols}}
	_, stats, err := r.Normalize(r.ctx, x, scale, scale, norm)
	require.NoError(t, err)
	of := func(_ any, err error) error { return err }
	for name, run := range map[string]func(ctx context.Context) error{
		"MatMul":           func(ctx context.Context) error { return of(r.MatMul(ctx, x, y, TransB)) },
		"Linear":           func(ctx context.Context) error { return of(r.Linear(ctx, x, y, bias)) },
		"LinearReLU":       func(ctx context.Context) error { return of(r.LinearReLU(ctx, x, y, bias)) },
		"Transpose":        func(ctx context.Context) error { return of(r.Transpose(ctx, x)) },
		"Exp":              func(ctx context.Context) error { return of(r.Exp(ctx, x)) },
		"Add":              func(ctx context.Context) error { return of(r.Add(ctx, x, y)) },
		"Add of a row":     func(ctx context.Context) error { return of(r.Add(ctx, x, scale)) },
		"AddBias":          func(ctx context.Context) error { return of(r.AddBias(ctx, x, scale)) },
		"GELUTanh":         func(ctx context.Context) error { return of(r.GELUTanh(ctx, x)) },
		"GELUTanhGrad":     func(ctx context.Context) error { return of(r.GELUTanhGrad(ctx, nil, x, y)) },
		"Sum":              func(ctx context.Context) error { return of(r.Sum(ctx, x)) },
		"Sum of columns":   func(ctx context.Context) error { return of(r.Sum(ctx, x, 0)) },
		"Softmax":          func(ctx context.Context) error { return of(r.Softmax(ctx, x, 1)) },
		"SoftmaxGrad":      func(ctx context.Context) error { return of(r.SoftmaxGrad(ctx, x, y, 1)) },
		"CrossEntropy":     func(ctx context.Context) error { return of(r.CrossEntropy(ctx, x, l)) },
		"CrossEntropyGrad": func(ctx context.Context) error { return of(r.CrossEntropyGrad(ctx, nil, x, l, dloss)) },
		"EmbeddingGrad":    func(ctx context.Context) error { return of(r.EmbeddingGrad(ctx, x, l, cols, EmbeddingConfig{})) },
		"ClipNorm":         func(ctx context.Context) error { return of(r.ClipNorm(ctx, 1, 2, x)) },
		"Adam":             func(ctx context.Context) error { return r.StepAdam(ctx, AdamStep{LR: 0.1, Step: 1}, wide, x, m, v) },
		"Normalize": func(ctx context.Context) error {
			_, _, err := r.Normalize(ctx, x, scale, scale, norm)
			return err
		},
		"NormalizeGrad": func(ctx context.Context) error {
			_, _, _, err := r.NormalizeGrad(ctx, y, x, scale, stats, norm, NormGrads{true, true, true})
			return err
		},
	} {
		require.NoError(t, run(r.ctx), name) // and what lasts
		before := r.cache.MemoryAllocated()
		r.cache.ResetPeakStats()
		require.NoError(t, run(r.ctx), name)
		results := r.cache.MemoryAllocated() - before
		assert.LessOrEqual(t, r.cache.MaxMemoryAllocated()-before, results+4<<10, name)
	}
}
