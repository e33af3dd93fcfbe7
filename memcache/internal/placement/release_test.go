package placement

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// holes creates an arena of the large pool with free and used blocks, and returns the free ones by
// size and address.
func holes(r *rand.Rand, rules *Rules) (*Arena, []*Chunk) {
	a := new(Arena)
	a.Init(rules, 1, false)
	at := device.Ptr(1 << 30)
	var used []*Chunk
	for range 30 {
		bytes := rules.SegmentSize(12<<20 + r.Int64N(60<<20))
		m := a.NewSegment(at, bytes, Large, nil)
		at += device.Ptr(bytes)
		a.PutBack(m)
	}
	for range 40 {
		w := Want{Kind: Large, Bytes: rules.RoundSize(2<<20 + r.Int64N(20<<20))}
		if m := a.Find(&w); m != nil {
			fit := a.Fit(m, &w)
			used = append(used, a.HandOut(m, &w, &fit, 0))
		}
	}
	for i, m := range used {
		if r.IntN(2) == 0 {
			a.Free(m, int64(i))
		}
	}
	var free []*Chunk
	for seg := range a.Segments() {
		for m := seg.First(); m != nil; m = m.Next() {
			if m.Free() {
				free = append(free, m)
			}
		}
	}
	slices.SortFunc(free, func(a, b *Chunk) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.ptr, b.ptr)) })
	return a, free
}

// TestTakeOversize: it takes the smallest that is enough for the request and for MaxSplit, or the
// largest ones together.
func TestTakeOversize(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 6))
		rules := &Rules{MaxSplit: 20<<20 + r.Int64N(40<<20)/512*512, MaxNonSplitRounding: 20 << 20, LargeSegment: 20 << 20}
		a, free := holes(r, rules)
		w := &Want{Kind: Large, Bytes: rules.RoundSize(r.Int64N(200 << 20))}
		need := max(w.Bytes, rules.MaxSplit)
		var want []*Chunk
		enough := false
		if i := slices.IndexFunc(free, func(m *Chunk) bool { return m.size >= need }); i >= 0 {
			want, enough = free[i:i+1], true
		} else {
			sum := int64(0)
			for i := len(free) - 1; i >= 0 && sum < need && free[i].size >= rules.MaxSplit; i-- {
				want = append(want, free[i])
				sum += free[i].size
			}
			enough = sum >= need
		}
		got, ok := a.TakeOversize(w)
		require.Equal(t, enough, ok)
		require.Equal(t, len(want), len(got))
		for i, m := range got {
			require.Same(t, want[i], m)
			require.False(t, m.Free(), "it is taken out")
		}
		require.NoError(t, a.Check(true, false))
	}
	a, _ := holes(rand.New(rand.NewPCG(1, 1)), &Rules{MaxSplit: 1 << 62, LargeSegment: 20 << 20})
	_, ok := a.TakeOversize(&Want{Kind: Large, Bytes: 1 << 40})
	require.False(t, ok)
}

// TestTakeOldest: the passes of garbage collection over whole free segments, which are taken out.
func TestTakeOldest(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		a, free := holes(r, &Rules{MaxSplit: 1 << 62, LargeSegment: 20 << 20})
		free = slices.DeleteFunc(free, func(m *Chunk) bool { return !m.Whole() })
		require.ElementsMatch(t, free, a.Old())
		excess, now := r.Int64N(1<<30), int64(100)
		gone := map[*Chunk]bool{}
		left := excess
		for pass := true; pass && left > 0; {
			ages, n := 0.0, 0.0
			for _, m := range free {
				if !gone[m] {
					ages, n = ages+float64(now-m.freeSince), n+1
				}
			}
			pass = false
			mean := ages / n
			for _, m := range free {
				if !gone[m] && float64(now-m.freeSince) >= mean {
					gone[m], pass = true, true
					left -= m.size
				}
			}
		}
		victims := TakeOldest(a.Old(), excess, now)
		require.Len(t, victims, len(gone))
		for _, m := range victims {
			require.True(t, gone[m])
			require.False(t, m.Free(), "it is taken out")
		}
	}
}

// TestTakeGranules: it takes the largest free pieces of a pool with whole granules, until there are
// enough, and never the one that grows.
func TestTakeGranules(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 8))
		rules := &Rules{MaxSplit: 1 << 62, LargeSegment: 20 << 20, Granule: 4 << 20, Expandable: true}
		var a Arena
		a.Init(rules, 1, false)
		m := a.Reserve(1<<30, 400<<20, Large, nil)
		seg := m.Segment()
		a.Map(m, 400<<20)
		a.PutBack(m)
		var used, free []*Chunk
		for range 60 {
			w := Want{Kind: Large, Bytes: rules.RoundSize(1<<20 + r.Int64N(12<<20))}
			if m := a.Find(&w); m != nil {
				fit := a.Fit(m, &w)
				used = append(used, a.HandOut(m, &w, &fit, 0))
			}
		}
		for _, m := range used {
			if r.IntN(2) == 0 {
				a.Free(m, 0)
			}
		}
		for m := seg.First(); m != nil; m = m.Next() {
			if m.Free() {
				free = append(free, m)
			}
		}
		slices.SortFunc(free, func(a, b *Chunk) int { return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(b.ptr, a.ptr)) })
		except := free[r.IntN(len(free))]
		need := r.Int64N(100 << 20)
		var want []*Chunk
		left := need
		for _, m := range free {
			granules := int64(0)
			for at := m.segment.ptr; at < m.segment.ptr+device.Ptr(m.segment.bytes); at += device.Ptr(rules.Granule) {
				if at >= m.ptr && at+device.Ptr(rules.Granule) <= m.ptr+device.Ptr(m.size) {
					granules += rules.Granule
				}
			}
			if m != except && granules > 0 && left > 0 {
				want, left = append(want, m), left-granules
			}
		}
		got, missing := a.TakeGranules(nil, need, except)
		require.Equal(t, left, missing)
		require.Equal(t, len(want), len(got))
		for i, m := range got {
			require.Same(t, want[i], m)
			require.False(t, m.Free(), "it is taken out")
		}
		none, missing := a.TakeGranules(&Pool{}, need, nil)
		require.Empty(t, none)
		require.Equal(t, need, missing)
	}
}
