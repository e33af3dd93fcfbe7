package tensor

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cistern-ml/cistern/tensor/fn"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestBFloat16WithoutCopies: an operation that a GPU computes in bfloat16 allocates its results,
// but no copies of its operands in float32.
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
	qkv := put(r, halves(random, 2*rows*3*cols, false), 2, rows, 3*cols)
	attended, sums, err := r.SelfAttention(r.ctx, qkv, nil, 2, true, AttentionConfig{Causal: true})
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
		"GELUTanhGrad":     func(ctx context.Context) error { return of(r.ApplyGrad(ctx, fn.GELUTanh, nil, x, y)) },
		"Sum":              func(ctx context.Context) error { return of(r.Sum(ctx, x)) },
		"Sum of columns":   func(ctx context.Context) error { return of(r.Sum(ctx, x, 0)) },
		"Softmax":          func(ctx context.Context) error { return of(r.Softmax(ctx, x, 1)) },
		"SoftmaxGrad":      func(ctx context.Context) error { return of(r.SoftmaxGrad(ctx, x, y, 1)) },
		"CrossEntropy":     func(ctx context.Context) error { return of(r.CrossEntropy(ctx, x, l)) },
		"CrossEntropyGrad": func(ctx context.Context) error { return of(r.CrossEntropyGrad(ctx, nil, x, l, dloss)) },
		"EmbeddingGrad":    func(ctx context.Context) error { return of(r.EmbeddingGrad(ctx, x, l, cols, EmbeddingConfig{})) },
		"ClipNorm":         func(ctx context.Context) error { return of(r.ClipNorm(ctx, 1, 2, x)) },
		"Adam":             func(ctx context.Context) error { return stepOne(ctx, r.Runtime, Adam{LR: 0.1, Step: 1}, wide, x, m, v) },
		"SelfAttention": func(ctx context.Context) error {
			_, _, err := r.SelfAttention(ctx, qkv, nil, 2, true, AttentionConfig{Causal: true})
			return err
		},
		"SelfAttentionGrad": func(ctx context.Context) error {
			return of(r.SelfAttentionGrad(ctx, attended, attended, sums, qkv, nil, 2, true, AttentionConfig{Causal: true}))
		},
		"Normalize": func(ctx context.Context) error {
			_, _, err := r.Normalize(ctx, x, scale, scale, norm)
			return err
		},
		"NormalizeGrad": func(ctx context.Context) error {
			_, _, _, err := r.NormalizeGrad(ctx, y, x, scale, stats, norm, NormGrads{Input: true, Weight: true, Bias: true})
			return err
		},
	} {
		require.NoError(t, run(r.ctx), name) // and memory that the runtime keeps
		before := r.cache.MemoryAllocated()
		r.cache.ResetPeakStats()
		require.NoError(t, run(r.ctx), name)
		results := r.cache.MemoryAllocated() - before
		assert.LessOrEqual(t, r.cache.MaxMemoryAllocated()-before, results+4<<10, name)
	}
}

// TestBFloat16AttentionOfManyTiles compares attention over several tiles, of every size of heads,
// with attention of the same numbers in float32. The weights and the slopes of scores are rounded
// to bfloat16 in between.
func TestBFloat16AttentionOfManyTiles(t *testing.T) {
	r := newRig(t, 1<<28).scoped()
	random := rand.New(rand.NewPCG(4, 4))
	for _, c := range []struct {
		queries, keys, head, values int
		causal                      bool
	}{{150, 150, 64, 64, true}, {70, 200, 48, 24, false}, {200, 130, 40, 33, true}, {90, 90, 128, 128, true}, {33, 100, 72, 100, false}} {
		give := func(shape ...int) [2]*Tensor {
			half := put(r, halves(random, elements(shape), false), shape...)
			full, err := r.Convert(r.ctx, half, Float32)
			require.NoError(t, err)
			return [2]*Tensor{half, full}
		}
		q, k, v := give(2, 3, c.queries, c.head), give(2, 1, c.keys, c.head), give(3, c.keys, c.values)
		dy := give(2, 3, c.queries, c.values)
		var got [2][]*Tensor
		var logs [2]*Tensor
		for i := range got {
			y, sums, err := r.ScaledDotProductAttention(r.ctx, q[i], k[i], v[i], nil, AttentionConfig{Causal: c.causal})
			require.NoError(t, err)
			g, err := r.ScaledDotProductAttentionGrad(r.ctx, dy[i], y, sums, q[i], k[i], v[i], nil, AttentionConfig{Causal: c.causal}, false)
			require.NoError(t, err)
			got[i], logs[i] = []*Tensor{y, g.Query, g.Key, g.Value}, sums
		}
		require.InDeltaSlice(t, get[float64](r, logs[1], nil), get[float64](r, logs[0], nil), 1e-4)
		for i, name := range []string{"result", "queries", "keys", "values"} {
			want := get[float32](r, got[1][i], nil)
			size := 0.0
			for _, v := range want {
				size += float64(v) * float64(v)
			}
			size = math.Sqrt(size / float64(len(want)))
			for j, h := range get[BF16](r, got[0][i], nil) {
				w, g := float64(want[j]), float64(h.Float32())
				if !(math.Abs(w-g) <= 0x1p-5*(size+math.Abs(w))) {
					require.Failf(t, "wrong", "%s: %d of %+v is %v, want %v", name, j, c, g, w)
				}
			}
		}
	}
}
