package transfer_test

import (
	"fmt"
	"io"
	"testing"

	"context"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
)

func BenchmarkBuffer(b *testing.B) {
	b.Run("get+put", func(b *testing.B) {
		r := newRig(b, transfer.Config{})
		ctx := context.Background()
		b.ReportAllocs()
		for b.Loop() {
			buf, err := r.pool.Get(ctx, 64<<10)
			if err != nil {
				b.Fatal(err)
			}
			buf.Release()
		}
	})
	b.Run("get+put/parallel", func(b *testing.B) {
		r := newRig(b, transfer.Config{})
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			ctx := context.Background()
			for pb.Next() {
				buf, err := r.pool.Get(ctx, 64<<10)
				if err != nil {
					b.Error(err)
					return
				}
				buf.Release()
			}
		})
	})
}

func BenchmarkH2D(b *testing.B) {
	for _, size := range []int64{1 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			r := newRig(b, transfer.Config{})
			block := r.alloc(b, size, r.a)
			buf := r.get(b, size)
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.pool.H2D(context.Background(), r.a, block, 0, buf, 0, size); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, buf.Wait(b.Context()))
			require.NoError(b, buf.Release())
			require.NoError(b, block.Free())
		})
	}
}

func BenchmarkUpload(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			r := newRig(b, transfer.Config{})
			block := r.alloc(b, int64(size), r.a)
			src := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				c, err := r.pool.Upload(context.Background(), r.a, block, 0, src)
				if err != nil {
					b.Fatal(err)
				}
				if err := c.Wait(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, block.Free())
		})
	}
}

func BenchmarkLoader(b *testing.B) {
	for _, size := range []int64{1 << 10, 400 << 10} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			r := newRig(b, transfer.Config{})
			l, err := transfer.NewLoader(b.Context(), r.pool, transfer.LoaderConfig{
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
