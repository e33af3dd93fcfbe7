package report

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

// ledger is a program on a cache that keeps its own account of the holders.
type ledger struct {
	t       testing.TB
	cache   *memcache.Cache
	streams []device.Stream
	held    map[memcache.Block]memcache.Label
	states  []state
	silent  bool // nothing is written down
}

// state is the memory held after a number of entries of the history.
type state struct {
	entries int
	held    map[memcache.Label]int64 // bytes
	step    int64
	split   int64 // InactiveSplitBytes
}

func newLedger(t testing.TB, config memcache.Config, streams int, history memcache.HistoryOptions) *ledger {
	t.Helper()
	dev := cisterntest.Host(t, 1<<28)
	cache, err := memcache.New(dev, config)
	require.NoError(t, err)
	require.NoError(t, cache.RecordHistory(history))
	l := &ledger{t: t, cache: cache, held: make(map[memcache.Block]memcache.Label)}
	for range streams {
		s, err := dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		l.streams = append(l.streams, s)
	}
	t.Cleanup(func() {
		for b := range l.held {
			require.NoError(t, b.Free())
		}
		require.NoError(t, cache.Close())
		for _, s := range l.streams {
			require.NoError(t, s.Close())
		}
		require.NoError(t, dev.Close())
	})
	return l
}

// alloc allocates for a label.
func (l *ledger) alloc(label memcache.Label, bytes int64, stream int) memcache.Block {
	l.t.Helper()
	ctx := memcache.WithStep(memcache.WithCategory(memcache.WithModule(context.Background(), label.Module), label.Category), label.Step)
	b, err := l.cache.Alloc(ctx, bytes, l.streams[stream])
	require.NoError(l.t, err)
	l.held[b] = label
	l.note(label.Step)
	return b
}

func (l *ledger) free(b memcache.Block) {
	l.t.Helper()
	step := l.held[b].Step
	require.NoError(l.t, b.Free())
	delete(l.held, b)
	l.note(step)
}

// note records the memory held now.
func (l *ledger) note(step int64) {
	if l.silent {
		return
	}
	s := state{entries: len(l.cache.History()), held: make(map[memcache.Label]int64), step: step, split: l.cache.Stats().InactiveSplitBytes.All.Current}
	for b, label := range l.held {
		label.Step = 0
		s.held[label] += b.Size()
	}
	l.states = append(l.states, s)
}

// random runs steps of random allocations and frees: some blocks are never freed, some are used by
// two streams.
func (l *ledger) random(r *rand.Rand, steps int) {
	modules := []string{"", "encoder", "encoder.0", "encoder.0.linear", "head"}
	for step := range steps {
		var mine []memcache.Block
		for range 12 {
			label := memcache.Label{Module: modules[r.IntN(len(modules))], Category: memcache.Category(r.IntN(7)), Step: int64(step + 1)}
			b := l.alloc(label, 1+r.Int64N([]int64{3000, 900_000, 3 << 20}[r.IntN(3)]), r.IntN(len(l.streams)))
			if r.IntN(4) == 0 {
				require.NoError(l.t, b.RecordStream(l.streams[r.IntN(len(l.streams))]))
			}
			mine = append(mine, b)
			if r.IntN(2) == 0 {
				i := r.IntN(len(mine))
				l.free(mine[i])
				mine = append(mine[:i], mine[i+1:]...)
			}
		}
		for i, b := range mine {
			if i > 0 || r.IntN(3) > 0 {
				l.free(b)
			}
		}
	}
}

// report returns the cache's report.
func (l *ledger) report(o Options) *Report {
	l.t.Helper()
	r, err := FromCache(l.cache, nil, o)
	require.NoError(l.t, err)
	return r
}

// heldAt returns the holders at a moment, as the page computes them: from every block.
func (a *account) heldAt(m int32) map[memcache.Label]int64 {
	held := make(map[memcache.Label]int64)
	for _, b := range a.blocks {
		if b.alloc <= m && m < b.free {
			o := a.owners.list[b.owner]
			held[memcache.Label{Module: o.module, Category: memcache.Category(max(o.category, 0))}] += b.size
		}
	}
	return held
}

func sum[K comparable](m map[K]int64) (all int64) {
	for _, v := range m {
		all += v
	}
	return all
}

// mlp is a program whose steps have a known shape: parameters, activations, gradients, and from the
// first step on the optimiser's state. leak is the number of bytes that each step leaves behind.
func mlp(l *ledger, steps int, leak int64) {
	layers := []string{"encoder.0.linear", "encoder.1.linear", "head"}
	sizes := []int64{784 * 512 * 4, 512 * 512 * 4, 512 * 10 * 4}
	label := func(module string, c memcache.Category, step int) memcache.Label {
		return memcache.Label{Module: module, Category: c, Step: int64(step)}
	}
	for i, name := range layers {
		l.alloc(label(name, memcache.CategoryParameter, 0), sizes[i], 0)
	}
	for step := 1; step <= steps; step++ {
		var live []memcache.Block
		live = append(live, l.alloc(label("", memcache.CategoryInput, step), 256*784*4, 0))
		for i, name := range layers {
			live = append(live, l.alloc(label(name, memcache.CategoryActivation, step), 256*512*4/int64(i+1), 0))
		}
		live = append(live, l.alloc(label("loss", memcache.CategoryWorkspace, step), 1<<20+int64(step%7)*100_000, 0))
		for i, name := range layers {
			live = append(live, l.alloc(label(name, memcache.CategoryGradient, step), sizes[i], 0))
		}
		if step == 1 {
			for i, name := range layers {
				l.alloc(label(name, memcache.CategoryOptimizerState, step), 2*sizes[i], 0)
			}
		}
		for _, b := range live {
			l.free(b)
		}
		if leak > 0 {
			l.alloc(label("metrics", memcache.CategoryOther, step), leak, 0)
		}
	}
}

// everything is the length of a history that forgets nothing of the tests' programs.
var everything = memcache.HistoryOptions{Entries: 1 << 17, Stacks: memcache.StacksAlloc}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

func name(i int) string { return fmt.Sprintf("seed %d", i) }
