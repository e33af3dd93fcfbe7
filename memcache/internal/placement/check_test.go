package placement

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// newArena returns an arena with one block of 1 KiB in use, in a segment of 2 MiB.
func newArena(t *testing.T) (*Arena, *Chunk) {
	a := new(Arena)
	a.Init(&Rules{MaxSplit: math.MaxInt64, LargeSegment: 20 << 20, Granule: 20 << 20}, 1, false)
	w := Want{Bytes: 1024, Requested: 1000}
	m := a.NewSegment(1<<30, 2<<20, Small, nil)
	fit := a.Fit(m, &w)
	m = a.HandOut(m, &w, &fit, 0)
	require.NoError(t, a.Check(false, false))
	return a, m
}

// TestChecksFindMistakes breaks one thing at a time, because checks that accept everything would
// prove nothing.
func TestChecksFindMistakes(t *testing.T) {
	for name, corrupt := range map[string]func(a *Arena, m *Chunk){
		"a size":                 func(_ *Arena, m *Chunk) { m.size += 512 },
		"a size that is no unit": func(_ *Arena, m *Chunk) { m.size, m.next.ptr, m.next.size = 1000, m.next.ptr-24, m.next.size+24 },
		"a link":                 func(_ *Arena, m *Chunk) { m.next.prev = nil },
		"a segment":              func(_ *Arena, m *Chunk) { m.segment = new(Segment) },
		"a kind":                 func(_ *Arena, m *Chunk) { m.kind = Large },
		"a state":                func(_ *Arena, m *Chunk) { m.used = false },
		"a block not in index":   func(_ *Arena, m *Chunk) { m.next.TakeOut() },
		"a block in two states":  func(_ *Arena, m *Chunk) { m.next.used = true },
		"an end":                 func(_ *Arena, m *Chunk) { m.next.size -= 512 },
		"neighbours":             func(_ *Arena, m *Chunk) { m.used = false; m.insertFree(0) },
		"an index":               func(a *Arena, m *Chunk) { a.own.free[Small].len++ },
		"a list":                 func(_ *Arena, m *Chunk) { m.segment.free = new(index) },
		"an unmapped list":       func(_ *Arena, m *Chunk) { m.segment.unmapped = new(tree) },
		"a count of segments":    func(a *Arena, m *Chunk) { a.own.segments++ },
		"an unmapped one":        func(a *Arena, m *Chunk) { a.own.unmapped[Small].insert(&Chunk{ptr: 1}) },
		"a pool":                 func(a *Arena, m *Chunk) { a.private = map[*Pool]*lists{{}: {}} },
	} {
		t.Run(name, func(t *testing.T) {
			a, m := newArena(t)
			corrupt(a, m)
			require.Error(t, a.Check(false, false))
		})
	}
}

// TestTakenOut: a chunk that is taken out is consistent only if the caller allows it.
func TestTakenOut(t *testing.T) {
	a, m := newArena(t)
	m.next.TakeOut()
	require.Error(t, a.Check(false, false))
	require.NoError(t, a.Check(true, false))
	require.EqualValues(t, 1, a.PutBack(m.next)+a.Free(m, 1))
	require.NoError(t, a.Check(false, false))
}

// TestRecordsAreUsedAgain, after any use of their memory.
func TestRecordsAreUsedAgain(t *testing.T) {
	a, m := newArena(t)
	a.Free(m, 0)
	for i := range 50 {
		at := 2<<30 + int64(i)<<30
		a.Reserve(0, 4<<20, Small, nil)
		a.RemoveEmpty(true)
		n := a.NewSegment(0, at, Large, &Pool{})
		w := Want{Bytes: 1 << 20}
		fit := a.Fit(n, &w)
		n = a.HandOut(n, &w, &fit, 0)
		a.Free(n, 0)
		whole, _ := a.TakeReleasable(n.Segment().Pool(), Large)
		require.Len(t, whole, 1)
		a.Remove(whole[0].Segment())
	}
	require.Equal(t, 1, a.Len())
	unused := 0
	for m := a.unused; m != nil; m = m.next {
		unused++
	}
	require.Equal(t, 15, unused, "as many as were made at once, less one")
}
