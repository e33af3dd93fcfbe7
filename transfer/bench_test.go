package transfer_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
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
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			r := newRig(b, transfer.Config{})
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for g := range n {
				pairs := (b.N + g) / n
				wg.Go(func() {
					ctx := context.Background()
					for range pairs {
						buf, err := r.pool.Get(ctx, 64<<10)
						if err != nil {
							b.Error(err)
							return
						}
						buf.Release()
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/float64(b.Elapsed().Microseconds()+1), "pairs/us")
		})
	}
}

// One operation is 1,000 outputs of 4 KiB.
func BenchmarkBatch(b *testing.B) {
	const outputs, size = 1000, 4096
	for _, batched := range []bool{true, false} {
		b.Run(map[bool]string{true: "batch", false: "one by one"}[batched], func(b *testing.B) {
			r := newRig(b, transfer.Config{})
			ctx := context.Background()
			block := r.alloc(b, outputs*size, r.a)
			got := make([][]byte, outputs)
			b.SetBytes(outputs * size)
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if batched {
					err = readBatch(ctx, r, block, size, got)
				} else {
					err = readEach(ctx, r, block, size, got)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, block.Free())
		})
	}
}

// Outputs of 64 MiB in all are copied to slices with enough capacity.
func BenchmarkCollect(b *testing.B) {
	const outputs, size = 64, 1 << 20
	r := newRig(b, transfer.Config{})
	ctx := context.Background()
	block := r.alloc(b, outputs*size, r.a)
	batch := r.pool.NewBatch()
	for i := range outputs {
		_, err := batch.Output(ctx, block, int64(i)*size, size)
		require.NoError(b, err)
	}
	_, err := batch.Submit(ctx, r.a)
	require.NoError(b, err)
	got := make([][]byte, outputs)
	require.NoError(b, batch.CollectInto(ctx, got))
	b.SetBytes(outputs * size)
	for b.Loop() {
		if err := batch.CollectInto(ctx, got); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, batch.Close())
	require.NoError(b, block.Free())
}

func readBatch(ctx context.Context, r *rig, block memcache.Block, size int64, got [][]byte) error {
	batch := r.pool.NewBatch()
	defer batch.Close()
	for i := range got {
		if _, err := batch.Output(ctx, block, int64(i)*size, size); err != nil {
			return err
		}
	}
	if _, err := batch.Submit(ctx, r.a); err != nil {
		return err
	}
	return batch.CollectInto(ctx, got)
}

func readEach(ctx context.Context, r *rig, block memcache.Block, size int64, got [][]byte) error {
	buf, err := r.pool.Get(ctx, size)
	if err != nil {
		return err
	}
	defer buf.Release()
	for i := range got {
		c, err := r.pool.D2H(ctx, r.a, buf, 0, block, int64(i)*size, size)
		if err != nil {
			return err
		}
		if err := c.Wait(ctx); err != nil {
			return err
		}
		got[i] = append(got[i][:0], buf.Bytes()...)
	}
	return nil
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

// 1 GiB of ordinary and of registered memory in both directions; only on a GPU.
func BenchmarkGiB(b *testing.B) {
	const size = 1 << 30
	for _, name := range []string{"upload", "download", "h2d registered", "d2h registered"} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, transfer.Config{})
			if _, ok := r.dev.(device.HostVisible); ok {
				b.Skip("only on a GPU")
			}
			ctx := context.Background()
			block := r.alloc(b, size, r.a)
			mem := bytes.Repeat([]byte{1}, size)
			var reg transfer.Buffer
			if strings.HasSuffix(name, "registered") {
				var err error
				reg, err = r.pool.Register(ctx, mem)
				require.NoError(b, err)
			}
			b.SetBytes(size)
			for b.Loop() {
				var c *transfer.Copy
				var err error
				switch name {
				case "upload":
					c, err = r.pool.Upload(ctx, r.a, block, 0, mem)
				case "download":
					err = r.pool.Download(ctx, r.a, mem, block, 0)
				case "h2d registered":
					c, err = r.pool.H2D(ctx, r.a, block, 0, reg, 0, size)
				case "d2h registered":
					c, err = r.pool.D2H(ctx, r.a, reg, 0, block, 0, size)
				}
				if err == nil && c != nil {
					err = c.Wait(ctx)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, reg.Release())
			require.NoError(b, block.Free())
		})
	}
}

// Goroutines hold several buffers each, from one pool or, as the machine's limit, from a pool of
// their own ("apart"). A pair is a Get and its Release.
func BenchmarkHold(b *testing.B) {
	for _, apart := range []bool{false, true} {
		for _, n := range []int{1, 2, 16} {
			for _, held := range []int{1, 4, 16, 64} {
				name := fmt.Sprintf("goroutines=%d/held=%d", n, held)
				if apart {
					name = "apart/" + name
				}
				b.Run(name, func(b *testing.B) {
					pools := make([]*transfer.Pool, n)
					for i := range pools {
						if i == 0 || apart {
							pools[i] = newRig(b, transfer.Config{}).pool
						} else {
							pools[i] = pools[0]
						}
					}
					b.ReportAllocs()
					b.ResetTimer()
					var wg sync.WaitGroup
					for _, pool := range pools {
						wg.Go(func() { hold(b, pool, held, b.N/n/held+1) })
					}
					wg.Wait()
					b.ReportMetric(float64(b.N)/float64(b.Elapsed().Microseconds()+1), "pairs/us")
				})
			}
		}
	}
}

func hold(b *testing.B, pool *transfer.Pool, held, times int) {
	bufs := make([]transfer.Buffer, held)
	for range times {
		for i := range bufs {
			var err error
			if bufs[i], err = pool.Get(context.Background(), 64<<10); err != nil {
				b.Error(err)
				return
			}
		}
		for _, buf := range bufs {
			buf.Release()
		}
	}
}
