package loader_test

import (
	"context"
	"fmt"
	"io"
	"testing"

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
