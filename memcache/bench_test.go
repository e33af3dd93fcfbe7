package memcache

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHitsAllocateNothing(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	ctx, scope := c.Scope(context.Background(), "step")
	defer scope.End()
	keep := mustAlloc(t, c, 1000, s)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		b, _ := c.Alloc(ctx, 5000, s)
		_ = b.Free()
	}))
	require.NoError(t, keep.Free())
}

func BenchmarkAllocFree(b *testing.B) {
	for _, bytes := range []int64{512, 1 << 20, 256 << 20} {
		b.Run(fmt.Sprintf("cached/%d", bytes), func(b *testing.B) {
			c, dev := newCache(b, Config{})
			s, ctx := dev.stream(1), context.Background()
			b.ReportAllocs()
			for b.Loop() {
				block, err := c.Alloc(ctx, bytes, s)
				if err != nil {
					b.Fatal(err)
				}
				_ = block.Free()
			}
		})
	}
}

func BenchmarkRecordStream(b *testing.B) {
	c, dev := newCache(b, Config{})
	s, other, ctx := dev.stream(1), dev.stream(2), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		block, err := c.Alloc(ctx, 1<<20, s)
		if err != nil {
			b.Fatal(err)
		}
		_ = block.RecordStream(other)
		_ = block.Free()
		other.records = other.records[:0]
	}
}

func BenchmarkChurn(b *testing.B) {
	for _, n := range []int{64, 1000, 10_000} {
		b.Run(fmt.Sprintf("live/%d", n), func(b *testing.B) {
			dev := newScripted(1 << 50)
			c, err := New(dev, Config{})
			require.NoError(b, err)
			s, ctx, r := dev.stream(1), context.Background(), rand.New(rand.NewPCG(1, 1))
			live := make([]Block, n)
			for i := range live {
				live[i] = mustAlloc(b, c, int64(512*math.Exp2(r.Float64()*14)), s)
			}
			b.ReportAllocs()
			for b.Loop() {
				i := r.IntN(n)
				_ = live[i].Free()
				live[i], _ = c.Alloc(ctx, int64(512*math.Exp2(r.Float64()*14)), s)
			}
		})
	}
}
