package record

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/replay"
	"github.com/cistern-ml/cistern/memcache"
)

// program is a random caller of a cache.
type program struct {
	null       bool // on a null device, whose streams are held up now and then; else on the host device
	config     memcache.Config
	capacity   int64
	streams    int
	goroutines int
	steps      int     // of each goroutine
	largest    float64 // log2 of the largest request
	closes     bool    // streams are closed and made
	still      bool    // nothing is reset
	taken      int64   // bytes of the device outside of the cache
	fractions  bool    // the memory limit changes
	options    bool    // the options change
	pools      bool    // private pools are emptied
	fails      bool    // calls of EmptyCache end before what they wait for
}

// rig is a cache with a running program.
type rig struct {
	program
	t     testing.TB
	dev   device.Device
	cache *memcache.Cache

	mu    sync.Mutex
	all   []device.Stream
	holds map[uint64]func() // what lets a stream go on that is held up
	end   func()            // ends the call that waits, if it is to fail
}

func newRig(t testing.TB, p program) *rig {
	r := &rig{program: p, t: t, holds: make(map[uint64]func())}
	var dev device.Device
	var err error
	if p.null {
		var d *null.Device
		if d, err = null.New(null.Config{Capacity: p.capacity}); err == nil {
			d.SetScript(null.Script{Before: func(c *null.Call) {
				switch {
				case c.Op != null.OpSynchronize || r.endCall():
				case r.cache.Config().ReuseAcrossStreams != memcache.ReuseNever:
					r.letAllGo() // the stream may wait for any other
				default:
					r.letGo(c.Stream)
				}
			}})
		}
		dev = d
	} else {
		dev, err = host.New(host.Config{Capacity: p.capacity})
	}
	require.NoError(t, err)
	t.Cleanup(func() {
		r.letAllGo()
		require.NoError(t, dev.Close())
	})
	if p.taken > 0 {
		other, err := dev.Alloc(p.taken)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, dev.Free(other)) })
	}
	cache, err := memcache.New(dev, p.config)
	require.NoError(t, err)
	r.dev, r.cache = dev, cache
	t.Cleanup(func() {
		r.letAllGo()
		_ = cache.Close()
	})
	for range p.streams {
		r.all = append(r.all, r.newStream())
	}
	return r
}

func (r *rig) newStream() device.Stream {
	s, err := r.dev.NewStream(device.StreamOptions{})
	require.NoError(r.t, err)
	return s
}

// letGo unblocks a blocked stream.
func (r *rig) letGo(stream uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if release := r.holds[stream]; release != nil {
		delete(r.holds, stream)
		release()
	}
}

// endCall ends the blocked call, and reports whether it should fail.
func (r *rig) endCall() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end == nil {
		return false
	}
	r.end()
	return true
}

// failEmptyCache calls EmptyCache with a context that ends while it waits, if it waits.
func (r *rig) failEmptyCache() {
	ctx, cancel := context.WithCancel(context.Background())
	r.mu.Lock()
	r.end = cancel
	r.mu.Unlock()
	if err := r.cache.EmptyCache(ctx); err != nil {
		require.ErrorIs(r.t, err, context.Canceled)
	}
	r.mu.Lock()
	r.end = nil
	r.mu.Unlock()
	cancel()
}

// letAllGo unblocks all streams.
func (r *rig) letAllGo() {
	for _, s := range r.all {
		r.letGo(s.ID())
	}
}

// hold blocks one of the streams, or unblocks it.
func (r *rig) hold(random *rand.Rand) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.all[random.IntN(len(r.all))].(*null.Stream)
	if !ok {
		return
	}
	if release := r.holds[s.ID()]; release != nil {
		delete(r.holds, s.ID())
		release()
	} else if release, err := s.Hold(); err == nil {
		r.holds[s.ID()] = release
	}
}

func (r *rig) stream(random *rand.Rand) device.Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[random.IntN(len(r.all))]
}

// run lets the program's goroutines run, and returns what they did not free.
func (r *rig) run(seed uint64) (left []memcache.Block) {
	var wg sync.WaitGroup
	lists := make([][]memcache.Block, r.goroutines)
	for g := range r.goroutines {
		wg.Add(1)
		go func() {
			defer wg.Done()
			lists[g] = r.caller(rand.New(rand.NewPCG(seed, uint64(g))))
		}()
	}
	wg.Wait()
	return slices.Concat(lists...)
}

// caller is one goroutine. It frees its own blocks; labels and steps change meanwhile.
func (r *rig) caller(random *rand.Rand) (live []memcache.Block) {
	ctx := context.Background()
	for n := range r.steps {
		if random.IntN(20) == 0 {
			r.hold(random)
		}
		if r.fractions && random.IntN(40) == 0 {
			require.NoError(r.t, r.cache.SetMemoryFraction(min(1, float64(random.IntN(8))/5)))
		}
		if r.options && random.IntN(40) == 0 {
			config, err := r.cache.Config().With([]string{"", "max_split_size_mb:24", "expandable_segments:True", "expandable_segments:False,roundup_power2_divisions:4"}[random.IntN(4)])
			require.NoError(r.t, err)
			require.NoError(r.t, r.cache.SetConfig(ctx, config))
		}
		if r.pools && random.IntN(40) == 0 {
			pool, err := r.cache.NewPool(memcache.PoolOptions{})
			require.NoError(r.t, err)
			require.NoError(r.t, pool.Release())
			require.NoError(r.t, pool.EmptyCache(ctx))
		}
		if r.fails && random.IntN(40) == 0 {
			r.failEmptyCache()
		}
		switch x := random.Float64(); {
		case x < 0.52:
			ctx := memcache.WithStep(ctx, int64(n/50))
			ctx = memcache.WithModule(ctx, fmt.Sprint("layer", random.IntN(4)))
			ctx = memcache.WithCategory(ctx, memcache.Category(random.IntN(7)))
			s := r.stream(random)
			b, err := r.cache.Alloc(ctx, int64(math.Exp2(6+random.Float64()*(r.largest-6))), s)
			if err != nil {
				if !errors.Is(err, device.ErrClosed) {
					require.ErrorIs(r.t, err, memcache.ErrOutOfMemory)
				}
				for len(live) > 2 && random.IntN(4) > 0 {
					live = r.free(live, random.IntN(len(live)))
				}
				continue
			}
			if random.IntN(4) == 0 {
				other := r.stream(random)
				if !r.null {
					r.use(b, s, other)
				}
				require.NoError(r.t, b.RecordStream(other))
			}
			if random.IntN(5) == 0 {
				require.NoError(r.t, b.SetLabel(memcache.Label{Module: "later", Step: int64(n)}))
			}
			live = append(live, b)
			if random.IntN(8) == 0 { // its owner is set later
				i := random.IntN(len(live))
				require.NoError(r.t, live[i].SetLabel(memcache.Label{Module: fmt.Sprint("later", random.IntN(3)), Step: int64(random.IntN(2))}))
			}
		case x < 0.97:
			if len(live) > 0 {
				live = r.free(live, random.IntN(len(live)))
			}
		case x < 0.975:
			require.NoError(r.t, r.cache.EmptyCache(ctx))
		case x < 0.98:
			_, err := r.cache.TrimTo(ctx, random.Int64N(1+r.cache.MemoryReserved()))
			require.NoError(r.t, err)
		case x < 0.985 && !r.still:
			r.cache.ResetPeakStats()
		case x < 0.99 && !r.still:
			r.cache.ResetAccumulatedStats()
		case r.closes:
			i := random.IntN(len(r.all))
			r.mu.Lock()
			old := r.all[i]
			r.all[i] = r.newStream()
			r.mu.Unlock()
			r.letGo(old.ID())
			require.NoError(r.t, old.Close())
		}
	}
	return live
}

// use makes another stream write a block of s, after the work of s on that memory. Streams may be
// closed meanwhile.
func (r *rig) use(b memcache.Block, s, other device.Stream) {
	e, err := r.dev.NewEvent(device.EventOptions{})
	require.NoError(r.t, err)
	if s.Record(e) == nil && other.Wait(e) == nil {
		_ = other.Memset(b.Ptr(), 1, min(b.Size(), 4096))
	}
	require.NoError(r.t, e.Close())
}

func (r *rig) free(live []memcache.Block, i int) []memcache.Block {
	require.NoError(r.t, live[i].Free())
	return slices.Delete(live, i, i+1)
}

// read is the contents of a file.
func read(t testing.TB, file []byte) *recording.Recording {
	list, err := recording.Read(bytes.NewReader(file), "file", recording.Options{Details: true})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.True(t, list[0].Own)
	return list[0]
}

// verifies requires that a file verifies, and returns the reason if its calls were not repeated.
func verifies(t testing.TB, file []byte) string {
	t.Helper()
	p, err := recording.NewProgram(read(t, file))
	require.NoError(t, err)
	v, err := replay.Verify(p)
	require.NoError(t, err)
	require.Zero(t, v.Mismatches(), "%+v", v)
	s, err := replay.NewScenario(p)
	require.NoError(t, err)
	for _, other := range []string{"", "expandable_segments:True", "exact:False"} {
		config, _, err := replay.OptionsFor(p, other)
		require.NoError(t, err)
		e, err := s.Estimate(config)
		require.NoError(t, err)
		require.Positive(t, e.Allocs)
	}
	if len(v.Notes) == 0 { // the calls were made again, one after the other
		costsTheSame(t, p, s)
	}
	return p.Jumbled
}

// costsTheSame requires that a replay under the recorded options costs as much as the recording,
// unless the recording's driver refused a call that the replay's does not.
func costsTheSame(t testing.TB, p *recording.Program, s *replay.Scenario) {
	t.Helper()
	config, _, err := replay.RecordedOptions(p)
	require.NoError(t, err)
	e, err := s.Estimate(config)
	require.NoError(t, err)
	type cost struct{ allocated, reserved, retries, ooms int64 }
	var now, want cost
	for _, entry := range p.Entries {
		switch entry.Action {
		case recording.Refused:
			return
		case recording.Reserve:
			if entry.Addr == 0 {
				return
			}
		case recording.Alloc:
			now.allocated += entry.Bytes
			want.allocated = max(want.allocated, now.allocated)
		case recording.SegmentAlloc, recording.SegmentMap:
			now.reserved += entry.Size
			want.reserved = max(want.reserved, now.reserved)
		case recording.SegmentFree, recording.SegmentUnmap:
			now.reserved -= entry.Size
		case recording.OOM:
			want.ooms++
		}
	}
	blocks := map[device.Ptr]int64{}
	now, want.allocated = cost{}, 0
	flushes, asked := int64(0), false // of the pending call; the driver has allocated since
	for _, entry := range p.Entries {
		switch entry.Action {
		case recording.Alloc:
			blocks[entry.Addr] = entry.Bytes
			now.allocated += entry.Bytes
			want.allocated = max(want.allocated, now.allocated)
			if entry.Flags&recording.Grew != 0 {
				if !asked {
					want.retries -= flushes // what the flush waited for served it
				}
				flushes = 0 // it was that request's
			}
		case recording.FreeRequested:
			now.allocated -= blocks[entry.Addr]
		case recording.Flush:
			want.retries++
			flushes++
			asked = false
		case recording.SegmentAlloc, recording.SegmentMap:
			asked = true
		case recording.EmptyCache, recording.Trim: // a flush of its own, of a trim_to only if it had to wait
			want.retries -= flushes
			flushes = 0
		case recording.OOM:
			flushes = 0
		}
	}
	require.Equal(t, want, cost{e.PeakAllocated, e.PeakReserved, e.Retries, e.OOMs})
}

var configs = map[string]memcache.Config{
	"default":    {},
	"exact":      {Exact: true},
	"maxsplit":   {MaxSplitSizeMB: 20, RoundupPower2Divisions: memcache.AllDivisions(4)},
	"limit":      {MemoryLimit: 300<<20 + 12345},
	"gc":         {Exact: true, PerProcessMemoryFraction: 0.4, GarbageCollectionThreshold: 0.6},
	"expandable": {ExpandableSegments: true},
	"cached":     {MaxCachedBytes: 30 << 20},
	"remap":      {ExpandableSegments: true, ExpandableRemap: true, ExpandableGranuleMB: 2, MemoryLimit: 300 << 20},
}
