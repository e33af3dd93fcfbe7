package memcache

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/restore"
)

// randomSegment has pieces of random sizes. No two neighbours are free or unmapped.
func randomSegment(r *rand.Rand, small, expandable bool) (s restore.Segment) {
	granule, total := int64(20<<20), int64(0)
	if small {
		granule = 2 << 20
	}
	s.Small, s.Expandable = small, expandable
	for n := 1 + r.IntN(8); n > 0; n-- {
		p := restore.Piece{Bytes: 512 * (1 + r.Int64N(500))}
		if k := len(s.Pieces); r.IntN(2) == 0 && (k == 0 || s.Pieces[k-1].State == restore.Used) {
			p.State = restore.Free
		} else {
			p.Requested = 1 + r.Int64N(p.Bytes)
		}
		total += p.Bytes
		s.Pieces = append(s.Pieces, p)
		if !expandable || r.IntN(3) > 0 {
			continue
		}
		piece := func(bytes int64) {
			p := restore.Piece{Bytes: bytes, Requested: 1}
			if last := s.Pieces[len(s.Pieces)-1].State; last != restore.Free && r.IntN(2) == 0 {
				p = restore.Piece{State: restore.Free, Bytes: bytes}
			}
			s.Pieces = append(s.Pieces, p)
			total += bytes
		}
		if rest := total % granule; rest > 0 { // up to the next granule, after which one has no memory
			piece(granule - rest)
		}
		s.Pieces = append(s.Pieces, restore.Piece{State: restore.Unmapped, Bytes: granule})
		total += granule
		piece(512)
	}
	if expandable || small {
		if rest := total % granule; rest > 0 {
			s.Pieces = append(s.Pieces, restore.Piece{Bytes: granule - rest, Requested: 1})
		}
		s.Range = 1 << 33
	}
	return s
}

// TestRestore: a cache is filled with random memory. It then contains that memory, its invariants
// hold, and it can be used.
func TestRestore(t *testing.T) {
	r := rand.New(rand.NewPCG(34, 1))
	for range 60 {
		expandable := r.IntN(2) == 0
		dev, err := null.New(null.Config{Capacity: 1 << 36})
		require.NoError(t, err)
		c, err := New(dev, Config{ExpandableSegments: expandable, Exact: r.IntN(2) == 0})
		require.NoError(t, err)
		s, err := dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		pool, err := c.NewPool(PoolOptions{})
		require.NoError(t, err)
		var segments []restore.Segment
		for range r.IntN(6) {
			seg := randomSegment(r, r.IntN(2) == 0, expandable)
			seg.Stream, seg.Context = s, context.Background()
			if r.IntN(3) == 0 {
				seg.Context = pool.Context(seg.Context)
			}
			segments = append(segments, seg)
		}
		require.NoError(t, restore.Into(c, segments))
		require.NoError(t, c.check())

		var want, got []BlockSnapshot
		var reserved, allocated int64
		for i := range segments {
			for _, p := range segments[i].Pieces {
				b := BlockSnapshot{Size: p.Bytes, RequestedSize: restore.UnknownRequest, State: BlockInactive}
				if p.State == restore.Used {
					b.RequestedSize, b.State = p.Requested, BlockAllocated
					b.Address = p.Block.(Block).Ptr()
					allocated += p.Bytes
				}
				if p.State != restore.Unmapped {
					reserved += p.Bytes
					want = append(want, b)
				}
			}
		}
		for _, seg := range c.Snapshot().Segments {
			for _, b := range seg.Blocks {
				if b.Serial = 0; b.State == BlockInactive {
					b.Address = 0
				}
				got = append(got, b)
			}
		}
		require.ElementsMatch(t, want, got)
		stats := c.Stats()
		require.Equal(t, Stat{Current: reserved, Peak: reserved}, withoutSums(stats.ReservedBytes.All))
		require.Equal(t, Stat{Current: allocated, Peak: allocated}, withoutSums(stats.AllocatedBytes.All))
		require.Zero(t, stats.NumDeviceAlloc)

		for i := range segments {
			for _, p := range segments[i].Pieces {
				if p.State == restore.Used && r.IntN(2) == 0 {
					require.NoError(t, p.Block.(Block).Free())
					require.NoError(t, c.check())
				}
			}
		}
		mustAlloc(t, c, 1<<20, s)
		require.NoError(t, c.EmptyCache(t.Context()))
		require.NoError(t, c.check())
		_ = c.Close()
		free, total, err := dev.MemInfo()
		require.NoError(t, err)
		require.Equal(t, total, free, "everything went back")
	}
}

func withoutSums(s Stat) Stat { return Stat{Current: s.Current, Peak: s.Peak} }

// TestRestoreRefuses segments that the device or the options don't allow.
func TestRestoreRefuses(t *testing.T) {
	dev, err := null.New(null.Config{Capacity: 1 << 30})
	require.NoError(t, err)
	c, err := New(dev, Config{})
	require.NoError(t, err)
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	seg := restore.Segment{Stream: s, Context: t.Context(), Expandable: true, Range: 20 << 20, Pieces: []restore.Piece{{Bytes: 20 << 20}}}
	require.ErrorContains(t, restore.Into(c, []restore.Segment{seg}), "an expandable segment, without the option")
	seg.Expandable, seg.Pieces[0].Bytes = false, 1<<40
	require.ErrorIs(t, restore.Into(c, []restore.Segment{seg}), device.ErrOutOfMemory)
	require.NoError(t, c.check())
}
