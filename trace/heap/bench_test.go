package heap

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// BenchmarkCounter is an allocation and its free without an observer and with a Counter.
func BenchmarkCounter(b *testing.B) {
	for _, name := range []string{"none", "counter", "stacks"} {
		b.Run(name, func(b *testing.B) {
			counter := Counter{Stacks: name == "stacks"}
			var config memcache.Config
			if name != "none" {
				config.Observer = &counter
			}
			c, s := open(b, config)
			ctx := memcache.WithCategory(memcache.WithModule(b.Context(), "encoder.0.linear"), memcache.CategoryActivation)
			b.ReportAllocs()
			for b.Loop() {
				block, err := c.Alloc(ctx, 4096, s)
				if err == nil {
					err = block.Free()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestCounterAllocatesNothing: an allocation of a known owner costs nothing on the Go heap.
func TestCounterAllocatesNothing(t *testing.T) {
	for _, stacks := range []bool{false, true} {
		none, s := open(t, memcache.Config{})
		counter := Counter{Stacks: stacks}
		counted, s2 := open(t, memcache.Config{Observer: &counter})
		ctx := memcache.WithModule(t.Context(), "head")
		without := testing.AllocsPerRun(100, func() { require.NoError(t, alloc(t, ctx, none, s, 4096).Free()) })
		with := testing.AllocsPerRun(100, func() { require.NoError(t, alloc(t, ctx, counted, s2, 4096).Free()) })
		require.Equal(t, without, with, "stacks: %t", stacks)
	}
}

// TestCounterOfTags: tags with an unbounded number of values make a total each, unless they are
// dropped.
func TestCounterOfTags(t *testing.T) {
	for _, drop := range []bool{false, true} {
		counter := Counter{DropTags: drop}
		c, s := open(t, memcache.Config{Observer: &counter})
		for i := range 50 {
			ctx := memcache.WithTag(memcache.WithModule(t.Context(), "head"), "request", fmt.Sprint(i))
			require.NoError(t, alloc(t, ctx, c, s, 512).Free())
		}
		list := counter.Holdings()
		if !drop {
			require.Len(t, list, 50)
			continue
		}
		require.Equal(t, []memcache.Holding{{Label: memcache.Label{Module: "head"}, Size: 512, Blocks: 50, Bytes: 50 * 512, Requested: 50 * 512}}, list)
	}
}
