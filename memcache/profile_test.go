package memcache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/invariants"
)

// account is the owners of the memory, recorded by the test at every call: at the moment, and at
// the peak.
type account struct {
	live          map[uint64]accountBlock // by serial
	bytes         int64
	peak          map[holdingKey]Holding
	peakBytes     int64
	active, keeps int64 // bytes active and reserved at the peak
}

type accountBlock struct {
	key       holdingKey
	requested int64
}

// holdings returns the live blocks in the form of a profile.
func (a *account) holdings() map[holdingKey]Holding {
	m := map[holdingKey]Holding{}
	for _, b := range a.live {
		h := m[b.key]
		h.Label, h.Size = b.key.label, b.key.size
		h.Blocks++
		h.Bytes += h.Size
		h.Requested += b.requested
		m[b.key] = h
	}
	return m
}

// mark records a new peak, if there is one.
func (a *account) mark(c *Cache, force bool) {
	if a.bytes > a.peakBytes || force {
		st := c.Stats()
		a.peak, a.peakBytes, a.active, a.keeps = a.holdings(), a.bytes, st.ActiveBytes.All.Current, st.ReservedBytes.All.Current
	}
}

func (a *account) requirePeak(t *testing.T, p Profile, what string) {
	t.Helper()
	require.Equal(t, [3]int64{a.peakBytes, a.active, a.keeps}, [3]int64{p.Allocated, p.Active, p.Reserved}, what)
	requireHoldings(t, a.peak, p, what)
}

func requireHoldings(t *testing.T, want map[holdingKey]Holding, p Profile, what string) {
	t.Helper()
	got := map[holdingKey]Holding{}
	for i, h := range p.Holdings {
		got[holdingKey{label: h.Label, size: h.Size}] = h
		require.True(t, i == 0 || p.Holdings[i-1].Bytes >= h.Bytes, "the largest first")
	}
	require.Equal(t, len(got), len(p.Holdings))
	require.Equal(t, want, got, what)
}

// TestPeakProfile compares the owners of the memory, now, at the peak and at the peaks of scopes,
// with the test's own account, over random programs of one goroutine.
func TestPeakProfile(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 12
	}
	configs := []Config{{}, {NoCaching: true}, {ExpandableSegments: true}, {MemoryLimit: 24 << 20, GarbageCollectionThreshold: 0.5}, {Exact: true}}
	for seed := range seeds {
		config := configs[seed%uint64(len(configs))]
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomAccounts(t, config, seed) })
	}
}

func randomAccounts(t *testing.T, config Config, seed uint64) {
	c, dev := newCache(t, config)
	r := rand.New(rand.NewPCG(seed, 13))
	contexts := []context.Context{context.Background()}
	for i := range 6 {
		ctx := WithModule(contexts[r.IntN(len(contexts))], fmt.Sprint(i))
		contexts = append(contexts, WithCategory(ctx, Category(r.IntN(7))), WithTag(WithStep(ctx, int64(i)), "k", "v"))
	}
	streams := make([]*scriptedStream, 4)
	for i := range streams {
		streams[i] = dev.stream(uint64(i + 1))
	}
	next := uint64(10)
	all := &account{live: map[uint64]accountBlock{}, peak: map[holdingKey]Holding{}}
	type open struct {
		*Scope
		*account
	}
	var scopes []open
	accounts := func(f func(*account)) {
		f(all)
		for _, s := range scopes {
			f(s.account)
		}
	}
	var blocks []Block
	for range 300 {
		switch n := r.IntN(20); {
		case n < 9:
			i := r.IntN(len(streams))
			ctx := contexts[r.IntN(len(contexts))]
			bytes := 1 + r.Int64N(3000)
			if r.IntN(8) == 0 {
				bytes = r.Int64N(3 << 20)
			}
			b, err := c.Alloc(ctx, bytes, streams[i])
			if err != nil {
				require.ErrorIs(t, err, ErrOutOfMemory)
				continue
			}
			if b.IsZero() {
				continue
			}
			blocks = append(blocks, b)
			if r.IntN(4) == 0 {
				require.NoError(t, b.RecordStream(streams[r.IntN(len(streams))]))
			}
			accounts(func(a *account) {
				a.live[b.Serial()] = accountBlock{holdingKey{label: LabelOf(ctx), size: b.Size()}, bytes}
				a.bytes += b.Size()
				a.mark(c, false)
			})
		case n < 17 && len(blocks) > 0:
			i := r.IntN(len(blocks))
			b := blocks[i]
			blocks = slices.Delete(blocks, i, i+1)
			require.NoError(t, b.Free())
			accounts(func(a *account) {
				a.bytes -= b.Size()
				delete(a.live, b.Serial())
			})
		case n == 17:
			_, s := c.Scope(context.Background(), "s")
			a := &account{live: map[uint64]accountBlock{}, bytes: all.bytes}
			for k, v := range all.live {
				a.live[k] = v
			}
			a.mark(c, true)
			scopes = append(scopes, open{s, a})
		case n == 18 && len(scopes) > 0:
			i := r.IntN(len(scopes))
			s := scopes[i]
			if r.IntN(2) == 0 {
				s.requirePeak(t, s.Scope.EndProfile(), "of a scope that ends")
			} else {
				s.requirePeak(t, s.Scope.PeakProfile(), "of a scope")
				s.End()
			}
			require.Equal(t, Profile{}, s.Scope.PeakProfile(), "after End")
			require.Equal(t, Profile{}, s.Scope.EndProfile(), "the second time")
			scopes = slices.Delete(scopes, i, i+1)
		case n == 19:
			switch r.IntN(4) {
			case 0: // a stream whose blocks are all free ends, and another one begins: its shard is retired
				i := r.IntN(len(streams))
				if !slices.ContainsFunc(blocks, func(b Block) bool { return b.StreamID() == streams[i].ID() }) {
					streams[i].finish()
					streams[i].closed.Store(true)
					streams[i], next = dev.stream(next), next+1
				}
			case 1:
				for _, s := range streams {
					s.finish()
				}
			case 2:
				c.ResetPeakStats()
				all.peakBytes = -1
				all.mark(c, false)
			default:
				require.NoError(t, c.EmptyCache(context.Background()))
			}
		}
		if r.IntN(10) == 0 {
			requireHoldings(t, all.holdings(), c.Profile(), "now")
			all.requirePeak(t, c.PeakProfile(), "at the peak")
			require.Equal(t, c.MaxMemoryAllocated(), all.peakBytes)
			require.NoError(t, c.check())
		}
	}
	for _, s := range scopes {
		s.requirePeak(t, s.Scope.PeakProfile(), "of a scope")
	}
	err := c.Close()
	require.Equal(t, len(blocks) > 0, err != nil, "%v", err)
	all.requirePeak(t, c.PeakProfile(), "after Close")
	require.Empty(t, c.Profile().Holdings, "after Close")
}

// sequencer records every allocation and free with its sequence number in its shard.
type sequencer struct {
	mu     sync.Mutex
	events map[uint64][]OpInfo // by shard
}

func (s *sequencer) Start(ctx context.Context, op Op) (context.Context, Operation) {
	if op != OpAlloc && op != OpFree {
		return ctx, nil
	}
	return ctx, s
}

func (s *sequencer) End(info OpInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events[info.Shard] = append(s.events[info.Shard], info)
}

// TestPeakProfileConcurrentSafe: eight goroutines on eight streams free each other's blocks. The
// owners of the peak add up to it, and those of each stream are of one moment.
func TestPeakProfileConcurrentSafe(t *testing.T) {
	programs := 1000
	if testing.Short() {
		programs = 100
	}
	for seed := range programs {
		randomPeak(t, uint64(seed))
	}
}

func randomPeak(t *testing.T, seed uint64) {
	const streams = 8
	seq := &sequencer{events: map[uint64][]OpInfo{}}
	c, dev := newCache(t, Config{Observer: seq})
	ctx, scope := c.Scope(context.Background(), "all")
	exchange := make(chan Block, 16)
	together(streams, func(g int) {
		r := rand.New(rand.NewPCG(seed, uint64(g)))
		s := dev.stream(uint64(g))
		for range 20 {
			b, err := c.Alloc(WithStep(ctx, r.Int64N(3)), 1+r.Int64N(4096), s)
			if err != nil {
				t.Error(err)
				return
			}
			select {
			case exchange <- b:
			default:
			}
			if r.IntN(3) > 0 {
				select {
				case b := <-exchange:
					_ = b.Free()
				default:
				}
			}
		}
	})
	p := c.PeakProfile()
	require.Equal(t, c.MaxMemoryAllocated(), p.Allocated)
	require.Equal(t, scope.Window().Allocated.Peak, scope.PeakProfile().Allocated)
	require.Equal(t, p.Allocated, scope.PeakProfile().Allocated, "nothing was allocated before")

	// Each shard's blocks of the peak are those in use after some prefix of what it did.
	c.shards.lockAll()
	defer c.shards.unlockAll()
	var sum int64
	for _, s := range c.shards.list() {
		held := map[uint64]bool{}
		for _, f := range s.peak.freed {
			held[f.serial] = true
			sum += f.size
		}
		s.eachLive(func(h *handout) {
			if h.born <= s.peak.before {
				held[h.serial] = true
				sum += h.chunk.Size()
			}
		})
		require.True(t, isMoment(seq.events[s.id], held), "seed %d: the blocks of stream %d were never in use together", seed, s.id)
	}
	require.Equal(t, p.Allocated, sum)
}

// isMoment reports whether exactly the blocks in held were in use after some prefix of the events.
func isMoment(events []OpInfo, held map[uint64]bool) bool {
	slices.SortFunc(events, func(a, b OpInfo) int { return int(a.Seq) - int(b.Seq) })
	live := map[uint64]bool{}
	same := func() bool {
		for id := range live {
			if !held[id] {
				return false
			}
		}
		return len(live) == len(held)
	}
	if same() {
		return true
	}
	for _, e := range events {
		if e.Op == OpAlloc {
			live[e.Serial] = true
		} else {
			delete(live, e.Serial)
		}
		if same() {
			return true
		}
	}
	return false
}

func TestProfileSum(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	a, b := WithModule(context.Background(), "a"), WithModule(context.Background(), "b")
	for _, ctx := range []context.Context{a, b, WithCategory(a, CategoryGradient), b} {
		_, err := c.Alloc(ctx, 500, s)
		require.NoError(t, err)
	}
	mustAlloc(t, c, 1024, s)
	p := c.Profile()
	require.Len(t, p.Holdings, 4)
	require.Equal(t, []Share{{"", 1, 1024}, {"a", 2, 1024}, {"b", 2, 1024}}, p.Sum(func(h Holding) string { return h.Module }))
	require.EqualValues(t, 3072, p.Allocated)
	require.Equal(t, "other: 1024 bytes (1 × 1024 bytes)", fmt.Sprint(p.Holdings[0]), "the figures, and not the label alone")
	require.EqualValues(t, 2<<20, p.Reserved)
	require.EqualValues(t, 4*500+1024, p.Holdings[0].Requested+p.Holdings[1].Requested+p.Holdings[2].Requested+p.Holdings[3].Requested)
	require.Equal(t, Profile{}, func() Profile { c, _ := newCache(t, Config{}); return c.PeakProfile() }(), "of nothing")
}

// Blocks with one label are distinguished by their call sites, if stacks are kept.
func TestProfileStacks(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 10, Stacks: StacksState}))
	for range 3 {
		mustAlloc(t, c, 512, s)
	}
	mustAlloc(t, c, 512, s)
	h := c.Profile().Holdings
	require.Len(t, h, 2)
	require.Equal(t, [2]int{3, 1}, [2]int{h[0].Blocks, h[1].Blocks})
	require.NotEqual(t, h[0].Stack, h[1].Stack)
	require.Equal(t, h, c.PeakProfile().Holdings)
}

// A repetitive program leaves no notes, and so no garbage.
func TestStepsLeaveNoNotes(t *testing.T) {
	if invariants.Enabled {
		t.Skip("checks allocate")
	}
	c, dev := newCache(t, Config{})
	s, ctx := dev.stream(1), WithModule(context.Background(), "m")
	var blocks [10]Block
	step := func() {
		_, scope := c.Scope(ctx, "step")
		for i := range blocks {
			blocks[i], _ = c.Alloc(ctx, 1000, s)
		}
		for i := range blocks {
			_ = blocks[i].Free()
		}
		scope.End()
	}
	step()
	empty := testing.AllocsPerRun(100, func() { _, scope := c.Scope(ctx, "step"); scope.End() })
	require.Zero(t, testing.AllocsPerRun(100, step)-empty)
	require.LessOrEqual(t, len(c.shards.table.Load().find(1).peak.freed), 10)
}

// TestAllocatedByCategory: it adds up to the allocated bytes, also with unknown categories.
func TestAllocatedByCategory(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	var blocks []Block
	for _, category := range []Category{CategoryGradient, CategoryGradient, CategoryWorkspace, CategoryWorkspace + 1, 255} {
		b, err := c.Alloc(WithCategory(t.Context(), category), 512, s)
		require.NoError(t, err)
		blocks = append(blocks, b)
	}
	blocks = append(blocks, mustAlloc(t, c, 1024, s))
	require.Equal(t, [CategoryWorkspace + 1]int64{CategoryOther: 2048, CategoryGradient: 1024, CategoryWorkspace: 512}, c.AllocatedByCategory())
	for _, b := range blocks {
		require.NoError(t, b.Free())
	}
	require.Zero(t, c.AllocatedByCategory())
	require.NoError(t, c.Close())
	require.Zero(t, c.AllocatedByCategory())
}
