package memcache

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// TestReading: each part equals the result of the method with its name while the cache is idle.
func TestReading(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 100 * mib, MaxSplitSizeMB: 32})
	require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 100}))
	s := dev.stream(1)
	kept := mustAlloc(t, c, 3*mib, s)
	require.NoError(t, mustAlloc(t, c, 50*mib, s).Free())
	require.NoError(t, c.EmptyCache(t.Context()))
	got, history := c.Reading(), c.Snapshot().History
	require.Equal(t, history[:len(history)-1], got.Snapshot.History, "the other one has the mark of the first")
	require.NotEmpty(t, got.Snapshot.History)
	require.Equal(t, c.Snapshot().Segments, got.Snapshot.Segments)
	require.Equal(t, []Profile{c.Profile(), c.PeakProfile()}, []Profile{got.Profile, got.PeakProfile})
	require.Equal(t, c.Config(), got.Config)
	require.Equal(t, []int64{c.MemoryLimit(), c.MaxMemoryReserved()}, []int64{got.MemoryLimit, got.MaxMemoryReserved})
	require.Equal(t, []int64{kept.Size(), 53 * mib}, []int64{got.Profile.Allocated, got.PeakProfile.Allocated})
	require.Less(t, got.Profile.Reserved, got.MaxMemoryReserved)
	require.NoError(t, c.RecordHistory(HistoryOptions{}))
	require.Empty(t, c.Reading().Snapshot.History)
}

// TestReadingOfGraphs: the reading contains the memory of graphs.
func TestReadingOfGraphs(t *testing.T) {
	dev := cisterntest.Host(t, 64<<20)
	c, err := New(dev, Config{})
	require.NoError(t, err)
	s := cisterntest.Stream(t, dev)
	p, in := newPool(t, c, PoolOptions{})
	m := capturedIn(t, c, p, s, func() error {
		b, err := c.Alloc(in, 3<<20, s)
		return errors.Join(err, b.Free())
	})
	got := c.Reading().GraphProfile
	require.Equal(t, c.GraphProfile(), got)
	require.Equal(t, int64(3<<20), got.Holdings[0].Bytes)
	m.Close()
	require.NoError(t, errors.Join(p.Release(), c.Close(), dev.Close()))
}
