package loader_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

func BenchmarkLoader(b *testing.B) {
	for _, size := range []int64{1 << 10, 400 << 10} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			r := newRig(b, transfer.Config{})
			l, err := loader.New(b.Context(), r.pool, loader.Config{
				Cache: r.cache, Compute: r.a, Copy: r.b, Fields: []int64{size, 512},
			})
			require.NoError(b, err)
			n := 0
			require.NoError(b, l.Start(b.Context(), func(context.Context, [][]byte) error {
				if n++; n < 0 {
					return io.EOF
				}
				return nil
			}))
			b.SetBytes(size + 512)
			b.ReportAllocs()
			for b.Loop() {
				batch, err := l.Next(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				if err := batch.Release(); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, l.Close())
		})
	}
}

// BenchmarkBatcher reads samples that take a millisecond each, as from a disk or a network, and
// samples that take no time.
func BenchmarkBatcher(b *testing.B) {
	const batch = 16
	for _, wait := range []time.Duration{time.Millisecond, 0} {
		for _, workers := range []int{1, 2, 4, 8, 16, 64} {
			b.Run(fmt.Sprintf("wait=%v/workers=%d", wait, workers), func(b *testing.B) {
				r := newRig(b, transfer.Config{})
				samples := numbered[[64]float32]{1 << 20, func(i int) (s [64]float32, _ error) {
					if wait > 0 {
						time.Sleep(wait)
					}
					return s, nil
				}}
				batcher, l := open(b, r, samples, loader.BatcherConfig[[64]float32]{Sampler: loader.Sampler{Batch: batch}, Workers: workers})
				b.ReportAllocs()
				n := 0
				b.ResetTimer()
				for n < b.N {
					for _, err := range batcher.From(b.Context(), l, loader.Position{}) {
						if err != nil {
							b.Fatal(err)
						}
						if n++; n >= b.N {
							break
						}
					}
				}
				b.ReportMetric(float64(n*batch)/b.Elapsed().Seconds(), "samples/s")
			})
		}
	}
}
