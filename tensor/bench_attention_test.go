package tensor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkAttention is the causal attention of 8 sequences in 12 heads, and all its gradients, 12
// times in a captured graph, as in GPT-2. ns/op is for all 12.
func BenchmarkAttention(b *testing.B) {
	for _, d := range []Dtype{Float32, BFloat16} {
		for _, s := range [][2]int{{512, 64}, {512, 32}, {512, 128}, {2048, 64}} {
			for _, backward := range []bool{false, true} {
				pass := map[bool]string{false: "forward", true: "backward"}[backward]
				b.Run(fmt.Sprintf("%v/%dx%d/%s", d, s[0], s[1], pass), func(b *testing.B) { benchmarkAttention(b, d, s[0], s[1], backward) })
			}
		}
	}
}

func benchmarkAttention(b *testing.B, d Dtype, length, columns int, backward bool) {
	const layers = 12
	r := newRig(b, 4<<30).scoped()
	random := rand.New(rand.NewPCG(1, 0))
	made := func() *Tensor {
		data := make([]float32, 8*12*length*columns)
		for i := range data {
			data[i] = float32(random.NormFloat64())
		}
		x, err := r.Convert(r.ctx, put(r, data, 8, 12, length, columns), d)
		require.NoError(b, err)
		return x
	}
	q, k, v, dy, causal := made(), made(), made(), made(), AttentionConfig{Causal: true}
	y, sums, err := r.ScaledDotProductAttention(r.ctx, q, k, v, nil, causal)
	require.NoError(b, err)
	step := func(ctx context.Context) error {
		for range layers {
			if backward {
				g, err := r.ScaledDotProductAttentionGrad(ctx, dy, y, sums, q, k, v, nil, causal, false)
				if err := errors.Join(err, g.Query.Release(), g.Key.Release(), g.Value.Release()); err != nil {
					return err
				}
				continue
			}
			y, sums, err := r.ScaledDotProductAttention(ctx, q, k, v, nil, causal)
			if err := errors.Join(err, y.Release(), sums.Release()); err != nil {
				return err
			}
		}
		return nil
	}
	require.NoError(b, step(r.ctx))
	require.NoError(b, r.Synchronize(r.ctx))
	graph, err := r.Capture(r.ctx, step)
	require.NoError(b, err)
	defer func() { require.NoError(b, graph.Close()) }()
	require.NoError(b, graph.Replay(r.ctx))
	require.NoError(b, r.Synchronize(r.ctx))
	for b.Loop() {
		require.NoError(b, graph.Replay(r.ctx))
		require.NoError(b, r.Synchronize(r.ctx))
	}
	flops := 2 * float64(8*12*length*length*columns) // of the half of two products that a causal attention sees
	if backward {
		flops *= 2.5
	}
	b.ReportMetric(layers*flops*float64(b.N)/float64(b.Elapsed().Nanoseconds())/1e3, "TFLOP/s")
}
