package heap

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

const mib = 1 << 20

// TestGraphsInTheViewer: the memory of graphs is in use, by the owners of the captures, and tags
// select it, one graph of several, or the allocated memory alone.
func TestGraphsInTheViewer(t *testing.T) {
	dev := cisterntest.Host(t, 1<<30)
	c, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	s := cisterntest.Stream(t, dev)
	kept := alloc(t, memcache.WithModule(t.Context(), "embed"), c, s, 3*mib)
	capture := func(number uint64, layers ...string) (*memcache.Pool, *memcache.GraphMemory) {
		p, err := c.NewPool(memcache.PoolOptions{})
		require.NoError(t, err)
		stream := s.(device.GraphCapturer)
		require.NoError(t, stream.BeginCapture())
		m, err := c.CaptureGraph(p, func() error {
			var blocks []memcache.Block
			for _, layer := range layers {
				ctx := memcache.WithCategory(memcache.WithModule(p.Context(context.Background()), layer), memcache.CategoryActivation)
				blocks = append(blocks, alloc(t, memcache.WithTag(ctx, "graph", "mine"), c, s, 12*mib))
			}
			for _, b := range blocks {
				if err := b.Free(); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, number, m.Number)
		empty, err := stream.EndCapture()
		require.NoError(t, errors.Join(err, empty.Close()))
		return p, m
	}
	p, first := capture(1, "a.up", "a.down")
	q, second := capture(2, "b")
	file := write(t, Of(c))
	layers := account{}
	activation := func(module string) memcache.Label {
		return memcache.Label{Module: module, Category: memcache.CategoryActivation}
	}
	layers.add(activation("b"), 12*mib)
	require.Equal(t, layers.clean(), top(t, "-tagfocus=graph=2", file))
	layers.add(activation("a.up"), 12*mib)
	layers.add(activation("a.down"), 12*mib)
	require.Equal(t, layers.clean(), top(t, "-tagfocus=state=graph", file))
	require.Equal(t, map[string][2]int64{}, top(t, "-sample_index=peak_space", "-tagfocus=state=graph", file))
	layers.add(memcache.Label{Module: "embed"}, 3*mib)
	require.Equal(t, layers.clean(), top(t, file))
	require.Contains(t, pprof(t, "-comments", file), "in use: 3145728 bytes allocated, 3145728 active, 58720256 reserved; 37748736 of them held by graphs, 17825792 free")
	require.Equal(t, map[string][2]int64{"(other)": {0, 3 * mib}, "embed": {3 * mib, 3 * mib}}, top(t, "-tagignore=state=graph", file))
	second.Close() // its memory is of no graph now
	other := account{}
	other.add(memcache.Label{}, 12*mib)
	require.Equal(t, other.clean(), top(t, "-tagfocus=state=graph", "-tagignore=graph=1", write(t, Of(c))))
	first.Close()
	require.NoError(t, errors.Join(kept.Free(), p.Release(), q.Release(), c.Close(), s.Close(), dev.Close()))
}
