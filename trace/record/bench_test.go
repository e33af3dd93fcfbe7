package record

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// BenchmarkRecord is a step with 17 allocations and 17 frees, like one of a small model, without a
// recording and with one: the cost for the program, per step. The writer runs on another processor,
// if there is one.
func BenchmarkRecord(b *testing.B) {
	for _, o := range []*Options{nil, {}, {Gzip: true}, {Stacks: memcache.StacksAlloc}, {Stacks: memcache.StacksAll}, {Stacks: memcache.StacksAll, Gzip: true}} {
		name := "off"
		if o != nil {
			name = fmt.Sprintf("stacks=%d/gzip=%t", o.Stacks, o.Gzip)
		}
		b.Run(name, func(b *testing.B) {
			c, s := small(b, memcache.Config{})
			var r *Recorder
			if o != nil {
				var err error
				r, err = Start(io.Discard, c, *o)
				require.NoError(b, err)
			}
			ctx := memcache.WithCategory(memcache.WithModule(context.Background(), "layer"), memcache.CategoryActivation)
			var blocks [17]memcache.Block
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				step := r.Step(int64(n))
				for i := range blocks {
					blocks[i], _ = deep(10, func() (memcache.Block, error) { return c.Alloc(ctx, int64(i+1)<<12, s) })
				}
				for i := range blocks {
					_, _ = deep(10, func() (memcache.Block, error) { return memcache.Block{}, blocks[i].Free() })
				}
				step.End()
			}
			require.NoError(b, r.Close())
		})
	}
}

// deep calls f below a number of frames, as in a real program.
//
//go:noinline
func deep(n int, f func() (memcache.Block, error)) (memcache.Block, error) {
	if n == 0 {
		return f()
	}
	return deep(n-1, f)
}
