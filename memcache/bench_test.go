package memcache

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/invariants"
)

func TestHitsAllocateNothing(t *testing.T) {
	if invariants.Enabled {
		t.Skip("checks allocate")
	}
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	ctx, scope := c.Scope(context.Background(), "step")
	defer scope.End()
	pool, _ := newPool(t, c, PoolOptions{})
	for _, ctx := range []context.Context{ctx, pool.Context(ctx)} {
		keep := allocIn(t, ctx, c, 1000, s)
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			b, _ := c.Alloc(ctx, 5000, s)
			_ = b.Free()
		}))
		require.NoError(t, keep.Free())
	}
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

// BenchmarkMemoryAllocated reads a figure of the whole cache, which is one word per stream.
func BenchmarkMemoryAllocated(b *testing.B) {
	for _, streams := range []uint64{1, 8, 64} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			c, dev := newCache(b, Config{})
			for id := range streams {
				defer func(block Block) { _ = block.Free() }(mustAlloc(b, c, 512, dev.stream(id)))
			}
			b.ReportAllocs()
			for b.Loop() {
				_ = c.MemoryAllocated()
			}
		})
	}
}

// BenchmarkRotating has one block at the peak, on one stream after the other.
func BenchmarkRotating(b *testing.B) {
	for _, streams := range []uint64{1, 8, 64, 512} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			c, dev := newCache(b, Config{})
			ctx := context.Background()
			list := make([]*scriptedStream, streams)
			for i := range list {
				list[i] = dev.stream(uint64(i))
				require.NoError(b, mustAlloc(b, c, 512, list[i]).Free())
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				block, err := c.Alloc(ctx, 512, list[i%len(list)])
				if err != nil {
					b.Fatal(err)
				}
				_ = block.Free()
			}
		})
	}
}

// BenchmarkNestedScopes allocates a block in n nested scopes.
func BenchmarkNestedScopes(b *testing.B) {
	for _, scopes := range []int{0, 1, 16} {
		b.Run(fmt.Sprintf("scopes=%d", scopes), func(b *testing.B) {
			c, dev := newCache(b, Config{})
			s, ctx := dev.stream(1), context.Background()
			for range scopes {
				var scope *Scope
				ctx, scope = c.Scope(ctx, "nested")
				defer scope.End()
			}
			b.ReportAllocs()
			for b.Loop() {
				block, err := c.Alloc(ctx, 512, s)
				if err != nil {
					b.Fatal(err)
				}
				_ = block.Free()
			}
		})
	}
}

// BenchmarkCarried is AllocFree with a scope, a pool, or both in the context, or a label.
func BenchmarkCarried(b *testing.B) {
	for _, name := range []string{"scope", "pool", "both", "label"} {
		b.Run(name+"/1048576", func(b *testing.B) {
			c, dev := newCache(b, Config{})
			s, ctx := dev.stream(1), context.Background()
			if name == "label" {
				ctx = WithStep(WithModule(ctx, "encoder"), 1)
			}
			if name == "scope" || name == "both" {
				var scope *Scope
				ctx, scope = c.Scope(ctx, "step")
				defer scope.End()
			}
			if name == "pool" || name == "both" {
				pool, _ := newPool(b, c, PoolOptions{})
				ctx = pool.Context(ctx)
			}
			b.ReportAllocs()
			for b.Loop() {
				block, err := c.Alloc(ctx, 1<<20, s)
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
	}
}

// BenchmarkChurn frees a random block and allocates another, 512 B to 8 MiB, log-uniform.
func BenchmarkChurn(b *testing.B) {
	const prepared = 1 << 16
	r := rand.New(rand.NewPCG(7, 7))
	sizes, victims := make([]int64, prepared), make([]int, prepared)
	for i := range sizes {
		sizes[i], victims[i] = int64(math.Exp2(9+14*r.Float64())), r.IntN(1<<30)
	}
	for _, n := range []int{64, 1000, 10_000} {
		b.Run(fmt.Sprintf("live/%d", n), func(b *testing.B) {
			dev := newScripted(1 << 50)
			c, err := New(dev, Config{})
			require.NoError(b, err)
			s, ctx := dev.stream(1), context.Background()
			live := make([]Block, n)
			for i := range live {
				live[i] = mustAlloc(b, c, sizes[i%prepared], s)
			}
			i := 0
			step := func() {
				k := victims[i%prepared] % n
				_ = live[k].Free()
				live[k], _ = c.Alloc(ctx, sizes[(i*11+5)%prepared], s)
				i++
			}
			for range 100_000 {
				step()
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				step()
			}
		})
	}
}

// BenchmarkHoles allocates and frees 1 KiB where n free blocks of another size lie between live
// ones.
func BenchmarkHoles(b *testing.B) {
	for _, n := range []int{4 << 10, 16 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("free/%d", n), func(b *testing.B) {
			dev := newScripted(1 << 50)
			c, err := New(dev, Config{})
			require.NoError(b, err)
			s, ctx := dev.stream(1), context.Background()
			var holes []Block
			for range n {
				hole, err := c.Alloc(ctx, 1<<10, s)
				require.NoError(b, err)
				holes = append(holes, hole)
				_, err = c.Alloc(ctx, 512, s)
				require.NoError(b, err)
			}
			for _, hole := range holes {
				require.NoError(b, hole.Free())
			}
			b.ReportAllocs()
			for b.Loop() {
				block, err := c.Alloc(ctx, 1<<10, s)
				if err != nil {
					b.Fatal(err)
				}
				_ = block.Free()
			}
		})
	}
}

// BenchmarkStrides allocates and frees 1 KiB in one range of addresses with 20,000 free blocks of
// that size at a fixed distance.
func BenchmarkStrides(b *testing.B) {
	for _, stride := range append([]int64{499_712 - 512, 499_712 + 512}, strides...) {
		if stride <= 1<<10 || stride > 4*mib {
			continue
		}
		b.Run(fmt.Sprint(stride), func(b *testing.B) {
			dev := newScripted(1 << 50)
			c, err := New(dev, Config{ExpandableSegments: true})
			require.NoError(b, err)
			s, ctx := dev.stream(1), context.Background()
			var holes []Block
			for range 20_000 {
				hole, err := c.Alloc(ctx, 1<<10, s)
				require.NoError(b, err)
				holes = append(holes, hole)
				for rest := stride - 1<<10; rest > 0; rest -= mib { // more at a time would be of the other pool
					_, err = c.Alloc(ctx, min(rest, mib), s)
					require.NoError(b, err)
				}
			}
			require.Equal(b, stride*19_999, int64(holes[19_999].Ptr()-holes[0].Ptr()))
			for _, hole := range holes {
				require.NoError(b, hole.Free())
			}
			b.ReportAllocs()
			for b.Loop() {
				block, err := c.Alloc(ctx, 1<<10, s)
				if err != nil {
					b.Fatal(err)
				}
				_ = block.Free()
			}
		})
	}
}

// BenchmarkReplay repeats the calls of a recorded workload on one stream; ns/op is for one call.
func BenchmarkReplay(b *testing.B) {
	for _, name := range []string{"mnist_cnn", "resnet50", "gpt2", "segmentation"} {
		b.Run(name, func(b *testing.B) {
			calls, slots := callsOf(b, "testdata/recordings/"+name+".jsonl.gz")
			dev := newScripted(1 << 50)
			c, err := New(dev, Config{})
			require.NoError(b, err)
			s, ctx := dev.stream(1), context.Background()
			blocks := make([]Block, slots)
			round := func() {
				for _, call := range calls {
					if call.bytes > 0 {
						blocks[call.slot], _ = c.Alloc(ctx, call.bytes, s)
					} else {
						_ = blocks[call.slot].Free()
					}
				}
				for i, block := range blocks {
					if block.handout != nil && block.handout.serial == block.serial {
						_ = block.Free()
					}
					blocks[i] = Block{}
				}
			}
			round()
			b.ResetTimer()
			for range b.N {
				round()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(calls)), "ns/call")
		})
	}
}

// call allocates into a slot, or frees it.
type call struct {
	slot  int
	bytes int64
}

func callsOf(b *testing.B, file string) (calls []call, slots int) {
	at := map[int64]int{}
	var free []int
	for _, e := range readRecording(b, file).entries {
		switch e.action {
		case "alloc":
			k := slots
			if n := len(free); n > 0 {
				k, free = free[n-1], free[:n-1]
			} else {
				slots++
			}
			at[e.address] = k
			calls = append(calls, call{k, e.size})
		case "free_requested":
			if k, ok := at[e.address]; ok {
				delete(at, e.address)
				free = append(free, k)
				calls = append(calls, call{k, 0})
			}
		}
	}
	return calls, slots
}

// strides are distances of blocks, as in the tests of package placement: some of real programs,
// multiples of 512 near the Fibonacci fractions of powers of two, and those at which one
// multiplication by the golden ratio, or by another common constant, grows evenly.
var strides = []int64{
	512, 1024, 1536, 2048, 4096, 12_288, 65_536, 499_712, 1 << 20, 2 << 20, 20 << 20, 3 << 20, 512 * 987, 512 * 1597,
	512 * 46_368, 512 * 121_393, 512 * 6_765, 512 * 10_946, 512 * 17_711, 999_424, 1_499_136, 1 << 32, 1<<32 + 512, 1 << 40,
}
