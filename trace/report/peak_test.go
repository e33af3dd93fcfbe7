package report

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/torchsnapshot"
)

// heldBy is a holder of memory.
type heldBy struct{ category, module string }

// sumsOf returns the blocks and bytes of a peak, by holder.
func sumsOf(p Peak) map[heldBy][2]int64 {
	m := map[heldBy][2]int64{}
	for _, h := range p.Holdings {
		k := heldBy{h.Category, h.Module}
		m[k] = [2]int64{m[k][0] + h.Blocks, m[k][1] + h.Bytes}
	}
	return m
}

// randomly allocates and frees on a cache with a history of that many entries. It returns the
// holders of the cache's own profile of its peak.
func randomly(t *testing.T, entries int) (*memcache.Cache, map[heldBy][2]int64) {
	s := stacktest.New(t, stacktest.Config{Capacity: 256 << 20})
	require.NoError(t, s.Cache.RecordHistory(memcache.HistoryOptions{Entries: entries, Stacks: memcache.StacksAlloc}))
	r := rand.New(rand.NewPCG(1, uint64(entries)))
	labels := []memcache.Label{{}, {Module: "a.b (Linear)", Category: memcache.CategoryGradient, Tags: "tenant=x\nuser=y"},
		{Module: "a (Net)", Category: memcache.CategoryActivation}, {Module: "c", Step: 7}}
	var held []memcache.Block
	for range 400 {
		if len(held) > 0 && r.IntN(9) < 4 {
			i := r.IntN(len(held))
			require.NoError(t, held[i].Free())
			held = append(held[:i], held[i+1:]...)
			continue
		}
		b, err := s.Cache.Alloc(memcache.WithLabel(t.Context(), labels[r.IntN(len(labels))]), 1+r.Int64N(300_000), s.Stream)
		require.NoError(t, err)
		held = append(held, b)
	}
	t.Cleanup(func() {
		for _, b := range held {
			require.NoError(t, b.Free())
		}
	})
	want := map[heldBy][2]int64{}
	for _, h := range s.Cache.PeakProfile().Holdings {
		k := heldBy{h.Category.String(), strings.TrimSuffix(strings.TrimSuffix(h.Module, " (Linear)"), " (Net)")}
		want[k] = [2]int64{want[k][0] + int64(h.Blocks), want[k][1] + h.Bytes}
	}
	return s.Cache, want
}

// TestPeak: the holders at the peak are those of the cache's own profile, whether the history has the
// peak or has forgotten it.
func TestPeak(t *testing.T) {
	for _, entries := range []int{1 << 16, 4} {
		c, want := randomly(t, entries)
		r, err := FromCache(c, nil, Options{})
		require.NoError(t, err)
		require.Equal(t, entries == 4, r.account.forgotten != nil)
		p := r.Peak()
		require.Equal(t, want, sumsOf(p))
		stats := c.Stats()
		require.Equal(t, [2]int64{stats.AllocatedBytes.All.Peak, stats.ReservedBytes.All.Peak}, [2]int64{p.Allocated, p.Reserved})
		require.True(t, p.Labelled)
		require.True(t, p.Stacked)
		for i, h := range p.Holdings {
			require.Equal(t, "peak_test.go", filepath.Base(h.File))
			require.True(t, i == 0 || h.Bytes <= p.Holdings[i-1].Bytes, "the largest first")
		}
	}
	require.Zero(t, new(Report).Peak())
}

// TestSnapshotWithLabels: a snapshot of trace/torchsnapshot has the labels of the cache, and no
// frame of a label is a line.
func TestSnapshotWithLabels(t *testing.T) {
	c, want := randomly(t, 1<<16)
	var file bytes.Buffer
	require.NoError(t, torchsnapshot.Write(&file, torchsnapshot.State{Snapshot: c.Snapshot(), Config: c.Config()}))
	list, err := Read(&file, "snapshot", Options{})
	require.NoError(t, err)
	require.Len(t, list, 1)
	p := list[0].Peak()
	require.Equal(t, want, sumsOf(p))
	for _, h := range p.Holdings {
		require.Equal(t, "peak_test.go", filepath.Base(h.File), h)
	}
	require.Len(t, p.Steps, 1)
	require.EqualValues(t, 7, p.Steps[0].Step)
	tags := map[string]bool{}
	for _, o := range list[0].account.owners.list {
		tags[o.tags] = true
	}
	require.Equal(t, map[string]bool{"": true, "tenant=x\nuser=y": true}, tags)
}
