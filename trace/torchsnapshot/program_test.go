package torchsnapshot

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache"
)

// program is a random caller of a cache whose streams are blocked from time to time.
type program struct {
	t       testing.TB
	r       *rand.Rand
	dev     *null.Device
	cache   *memcache.Cache
	config  memcache.Config
	streams []*null.Stream
	held    map[device.Stream]func()
	live    []memcache.Block
}

func newProgram(t testing.TB, options string, stacks memcache.Stacks) *program {
	t.Helper()
	dev, err := null.New(null.Config{Capacity: 1 << 36})
	require.NoError(t, err)
	config, err := memcache.ParseConfig(options)
	require.NoError(t, err)
	cache, err := memcache.New(dev, config)
	require.NoError(t, err)
	require.NoError(t, cache.RecordHistory(memcache.HistoryOptions{Entries: 1 << 16, Stacks: stacks}))
	p := &program{t: t, r: rand.New(rand.NewPCG(1, 2)), dev: dev, cache: cache, config: config, held: make(map[device.Stream]func())}
	for id := range uint64(3) {
		s, err := dev.NewStreamWithID(id * 1000)
		require.NoError(t, err)
		p.streams = append(p.streams, s)
	}
	dev.SetScript(null.Script{Before: func(c *null.Call) {
		for s := range p.held {
			if c.Op == null.OpSynchronize && s.ID() == c.Stream {
				p.release(s)
			}
		}
	}})
	t.Cleanup(func() {
		for s := range p.held {
			p.release(s)
		}
		_ = cache.Close() // of live blocks
		_ = dev.Close()
	})
	return p
}

func (p *program) release(s device.Stream) {
	p.held[s]()
	delete(p.held, s)
}

var modules = []string{"", "embed", "encoder.0.attention", "encoder.1.mlp", "größe.\xff"}

// run makes a number of calls.
func (p *program) run(calls int) {
	for i := range calls {
		s := p.streams[p.r.IntN(len(p.streams))]
		switch x := p.r.Float64(); {
		case x < 0.52:
			ctx := memcache.WithModule(p.t.Context(), modules[p.r.IntN(len(modules))])
			ctx = memcache.WithStep(memcache.WithCategory(ctx, memcache.Category(p.r.IntN(7))), int64(i/100))
			p.alloc(ctx, int64(math.Exp2(9+p.r.Float64()*16)), s)
		case x < 0.92:
			if len(p.live) > 0 {
				p.free(p.r.IntN(len(p.live)))
			}
		case x < 0.925:
			require.NoError(p.t, p.cache.EmptyCache(p.t.Context()))
		case p.held[s] != nil:
			p.release(s)
		default:
			release, err := s.Hold()
			require.NoError(p.t, err)
			p.held[s] = release
		}
	}
}

func (p *program) alloc(ctx context.Context, bytes int64, s *null.Stream) {
	b, err := p.cache.Alloc(ctx, bytes, s)
	if err != nil {
		require.ErrorIs(p.t, err, memcache.ErrOutOfMemory)
		for len(p.live) > 2 && p.r.IntN(4) > 0 {
			p.free(p.r.IntN(len(p.live)))
		}
		return
	}
	for _, other := range p.streams {
		if other != s && p.r.IntN(4) == 0 {
			require.NoError(p.t, b.RecordStream(other))
		}
	}
	p.live = append(p.live, b)
}

func (p *program) free(i int) {
	require.NoError(p.t, p.live[i].Free())
	p.live = slices.Delete(p.live, i, i+1)
}

func (p *program) state() State { return State{Snapshot: p.cache.Snapshot(), Config: p.config} }
