package replay

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// recorder is a random caller of an exact cache, whose history is the recording.
type recorder struct {
	t       testing.TB
	r       *rand.Rand
	cache   *memcache.Cache
	streams []*heldStream
	live    []memcache.Block

	ctx      context.Context                   // of requests
	recorded func(memcache.Block, *heldStream) // called for each recorded stream, unless nil
}

// heldStream is a stream that is held up from time to time.
type heldStream struct {
	*null.Stream
	release func() // while it is held
}

func (s *heldStream) unhold() {
	if s.release != nil {
		s.release()
		s.release = nil
	}
}

// workload is what a recorder does.
type workload struct {
	conf     string
	limit    int64 // 0: none
	capacity int64
	sides    int
	steps    int
	largest  float64 // log2 of the largest request
	empty    float64 // the share of EmptyCache
	improved bool    // Config.Exact is off
}

func record(t testing.TB, seed uint64, w workload) recording.Recording {
	p := newRecorder(t, seed, w)
	for range w.steps {
		p.step(w)
	}
	return recorded(p.cache, w)
}

func newRecorder(t testing.TB, seed uint64, w workload) *recorder {
	dev, err := null.New(null.Config{Capacity: w.capacity})
	require.NoError(t, err)
	config, err := memcache.ParseConfig(w.conf)
	require.NoError(t, err)
	config.Exact, config.MemoryLimit = !w.improved, w.limit
	cache, err := memcache.New(dev, config)
	require.NoError(t, err)
	p := &recorder{t: t, r: rand.New(rand.NewPCG(seed, 1)), cache: cache, ctx: context.Background()}
	for id := range w.sides {
		s, err := dev.NewStreamWithID(uint64(100 * id))
		require.NoError(t, err)
		p.streams = append(p.streams, &heldStream{Stream: s})
	}
	dev.SetScript(null.Script{Before: p.before})
	require.NoError(t, cache.RecordHistory(memcache.HistoryOptions{Entries: 20 * w.steps}))
	return p
}

// recorded is the recording of what a cache did.
func recorded(cache *memcache.Cache, w workload) recording.Recording {
	rec := recording.Recording{Name: "random", Conf: w.conf, TotalMemory: w.capacity, Limit: w.limit, LimitKnown: true, Stats: cache.Stats().Map()}
	for _, s := range cache.Snapshot().Segments {
		seg := recording.Segment{Address: s.Address, Size: s.TotalSize, Stream: s.Stream}
		for _, b := range s.Blocks {
			seg.Blocks = append(seg.Blocks, recording.Block{Address: b.Address, Size: b.Size, Requested: b.RequestedSize, State: string(b.State)})
		}
		rec.Segments = append(rec.Segments, seg)
	}
	for _, h := range cache.History() {
		e := recording.Entry{Addr: h.Address, Size: h.Size, Stream: h.Stream, Free: h.Free, Block: -1}
		for a := recording.Alloc; a <= recording.OOM; a++ {
			if a.String() == string(h.Action) {
				e.Action = a
				rec.Entries = append(rec.Entries, e)
			}
		}
	}
	return rec
}

// before completes work when the cache waits for a stream.
func (p *recorder) before(c *null.Call) {
	for _, s := range p.streams {
		if c.Op == null.OpSynchronize && s.ID() == c.Stream {
			s.unhold()
		}
	}
}

func (p *recorder) step(w workload) {
	switch x := p.r.Float64(); {
	case x < 0.5:
		p.alloc(int64(math.Exp2(9+p.r.Float64()*(w.largest-9))), p.streams[p.r.IntN(len(p.streams))])
	case x < 0.9:
		if len(p.live) > 0 {
			p.free(p.r.IntN(len(p.live)))
		}
	case x < 0.9+w.empty:
		require.NoError(p.t, p.cache.EmptyCache(context.Background()))
	default:
		s := p.streams[p.r.IntN(len(p.streams))]
		if s.release != nil {
			s.unhold()
			return
		}
		release, err := s.Hold()
		require.NoError(p.t, err)
		s.release = release
	}
}

func (p *recorder) alloc(bytes int64, s *heldStream) {
	b, err := p.cache.Alloc(p.ctx, bytes, s.Stream)
	if err != nil {
		require.ErrorIs(p.t, err, memcache.ErrOutOfMemory)
		for len(p.live) > 2 && p.r.IntN(4) > 0 {
			p.free(p.r.IntN(len(p.live)))
		}
		return
	}
	for _, other := range p.streams {
		if other != s && p.r.IntN(4) == 0 {
			p.recordStream(b, other)
		}
	}
	p.live = append(p.live, b)
}

func (p *recorder) free(i int) {
	require.NoError(p.t, p.live[i].Free())
	p.live = slices.Delete(p.live, i, i+1)
}

func (p *recorder) recordStream(b memcache.Block, s *heldStream) {
	require.NoError(p.t, b.RecordStream(s.Stream))
	if p.recorded != nil {
		p.recorded(b, s)
	}
}
