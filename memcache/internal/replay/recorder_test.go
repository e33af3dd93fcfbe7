package replay

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/memcache/internal/recording"
)

// recorder is a caller of an exact cache that writes down what PyTorch's allocator would.
type recorder struct {
	t       testing.TB
	r       *rand.Rand
	dev     *null.Device
	cache   *memcache.Cache
	streams []*side // by ID
	live    []recorded
	rec     recording.Recording

	emptying bool // EmptyCache runs
	undo     undo
}

type recorded struct {
	block memcache.Block
	entry recording.Entry
	uses  []*side
}

// side is a stream, held up from time to time, and the events on it that the cache has not seen.
type side struct {
	*null.Stream
	release func() // while it is held
	hold    int    // the number of holds
	events  []use
}

type use struct {
	free *pendingUse
	hold int // the event is complete once this hold is over; 0: at once
}

type pendingUse struct {
	entry recording.Entry
	left  int // events
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
}

func record(t testing.TB, seed uint64, w workload) *recorder {
	dev, err := null.New(null.Config{Capacity: w.capacity})
	require.NoError(t, err)
	config, err := memcache.ParseConfig(w.conf)
	require.NoError(t, err)
	config.Exact, config.MemoryLimit = true, w.limit
	cache, err := memcache.New(dev, config)
	require.NoError(t, err)
	p := &recorder{t: t, r: rand.New(rand.NewPCG(seed, 1)), dev: dev, cache: cache}
	p.rec = recording.Recording{Name: "random", Conf: w.conf, TotalMemory: w.capacity, Limit: w.limit, LimitKnown: true}
	for id := range w.sides {
		s, err := dev.NewStreamWithID(uint64(100 * id))
		require.NoError(t, err)
		p.streams = append(p.streams, &side{Stream: s})
	}
	dev.SetScript(null.Script{Before: p.before, After: p.after})
	for range w.steps {
		p.step(w)
	}
	p.rec.Stats = cache.Stats().Map()
	for _, s := range cache.Snapshot().Segments {
		seg := recording.Segment{Address: s.Address, Size: s.TotalSize, Stream: s.Stream}
		for _, b := range s.Blocks {
			seg.Blocks = append(seg.Blocks, recording.Block{Address: b.Address, Size: b.Size, Requested: b.RequestedSize, State: string(b.State)})
		}
		p.rec.Segments = append(p.rec.Segments, seg)
	}
	return p
}

func (p *recorder) log(a recording.Action, e recording.Entry) {
	e.Action = a
	p.rec.Entries = append(p.rec.Entries, e)
}

// after logs driver calls; the parts of one mapping become one entry.
func (p *recorder) after(c null.Call) { p.rec.Entries, _ = p.undo.append(p.rec.Entries, c) }

// before lets time pass when the cache waits for a stream.
func (p *recorder) before(c *null.Call) {
	p.undo.before(c)
	if c.Op == null.OpSynchronize {
		for _, s := range p.streams {
			if s.ID() == c.Stream {
				s.unhold()
			}
		}
		p.poll()
	} else if p.emptying {
		p.poll() // EmptyCache saw what was complete before it releases anything
	}
}

func (s *side) unhold() {
	if s.release != nil {
		s.release()
		s.release = nil
	}
}

// poll logs the completions that the cache sees when it polls now.
func (p *recorder) poll() {
	for _, s := range p.streams {
		for len(s.events) > 0 {
			u := s.events[0]
			if u.hold == s.hold && s.release != nil {
				break
			}
			s.events = s.events[1:]
			if u.free.left--; u.free.left == 0 {
				p.log(recording.FreeCompleted, u.free.entry)
			}
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
		p.emptying = true
		require.NoError(p.t, p.cache.EmptyCache(context.Background()))
		p.poll()
		p.emptying = false
	default:
		s := p.streams[p.r.IntN(len(p.streams))]
		if s.release != nil {
			s.unhold()
			return
		}
		release, err := s.Hold()
		require.NoError(p.t, err)
		s.hold++
		s.release = release
	}
	s := p.cache.Stats()
	var pending int64
	seen := map[*pendingUse]bool{}
	for _, s := range p.streams {
		for _, u := range s.events {
			if !seen[u.free] {
				seen[u.free] = true
				pending++
			}
		}
	}
	require.Equal(p.t, pending, s.Active.All.Current-s.Allocation.All.Current, "the recorder must know what is pending")
}

func (p *recorder) alloc(bytes int64, s *side) {
	p.poll()
	b, err := p.cache.Alloc(context.Background(), bytes, s)
	e := recording.Entry{Addr: b.Ptr(), Size: bytes, Stream: s.ID(), Block: -1}
	var oom *memcache.OutOfMemoryError
	if errors.As(err, &oom) {
		config, _ := memcache.ParseConfig(p.rec.Conf)
		p.log(recording.OOM, recording.Entry{Size: config.RoundSize(bytes), Stream: s.ID(), Free: oom.Free, Block: -1})
		for len(p.live) > 2 && p.r.IntN(4) > 0 {
			p.free(p.r.IntN(len(p.live)))
		}
		return
	}
	require.NoError(p.t, err)
	p.log(recording.Alloc, e)
	l := recorded{block: b, entry: e}
	for _, other := range p.streams {
		if other != s && p.r.IntN(4) == 0 {
			require.NoError(p.t, b.RecordStream(other))
			l.uses = append(l.uses, other)
		}
	}
	p.live = append(p.live, l)
}

func (p *recorder) free(i int) {
	l := p.live[i]
	p.live = slices.Delete(p.live, i, i+1)
	require.NoError(p.t, l.block.Free())
	p.log(recording.FreeRequested, l.entry)
	if len(l.uses) == 0 {
		p.log(recording.FreeCompleted, l.entry)
		return
	}
	free := &pendingUse{entry: l.entry, left: len(l.uses)}
	for _, s := range l.uses {
		u := use{free: free}
		if s.release != nil {
			u.hold = s.hold
		}
		s.events = append(s.events, u)
	}
}
