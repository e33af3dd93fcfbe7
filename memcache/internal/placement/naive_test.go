package placement

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// piece is a chunk of the naive arena, which keeps all pieces in one list in address order, and
// searches all of it.
type piece struct {
	at, size   int64
	segment    int64 // its address
	kind       Kind
	pool       *Pool
	expandable bool
	state      string // "used", "free", "unmapped", "out"
	freed      int64  // when
}

// naive is an arena that is simple so that it is correct.
type naive struct {
	rules  Rules
	pieces []piece
}

func (n *naive) sort() {
	slices.SortFunc(n.pieces, func(a, b piece) int { return cmp.Compare(a.at, b.at) })
}

func (n *naive) at(at int64) *piece {
	return &n.pieces[slices.IndexFunc(n.pieces, func(p piece) bool { return p.at == at })]
}

// merge joins adjacent free, or unmapped, pieces of one segment, and keeps the younger one's time.
// It counts the free ones.
func (n *naive) merge() (merged int64) {
	n.sort()
	for i := 0; i+1 < len(n.pieces); i++ {
		a, b := &n.pieces[i], n.pieces[i+1]
		if a.segment == b.segment && a.state == b.state && (a.state == "free" || a.state == "unmapped") {
			if a.state == "free" {
				merged++
			}
			a.size += b.size
			a.freed = max(a.freed, b.freed)
			n.pieces = slices.Delete(n.pieces, i+1, i+2)
			i--
		}
	}
	return merged
}

// whole reports whether a piece is its whole segment.
func (n *naive) whole(p *piece) bool {
	count := 0
	for _, o := range n.pieces {
		if o.segment == p.segment {
			count++
		}
	}
	return count == 1
}

// inactive counts the free parts of segments.
func (n *naive) inactive() (d Inactive) {
	for i := range n.pieces {
		if p := &n.pieces[i]; p.state == "free" && !p.expandable && !n.whole(p) {
			d.Blocks++
			d.Bytes += p.size
		}
	}
	return d
}

// find is best fit by a search of all pieces: the smallest, then the lowest.
func (n *naive) find(w *Want) *piece {
	var best *piece
	for i := range n.pieces {
		p := &n.pieces[i]
		if p.state == "free" && p.kind == w.Kind && p.pool == w.Pool && p.size >= w.Bytes && (best == nil || p.size < best.size) {
			best = p
		}
	}
	if best != nil && best.expandable {
		// In the order of the index, as long as the next one has less space up to the next block.
		list := []piece{}
		for _, p := range n.pieces {
			if p.state == "free" && p.kind == w.Kind && p.pool == w.Pool && (p.size > best.size || p.size == best.size && p.at >= best.at) {
				list = append(list, p)
			}
		}
		slices.SortFunc(list, func(a, b piece) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.at, b.at)) })
		i := 0
		for i+1 < len(list) && list[i].expandable && n.room(list[i+1]) < n.room(list[i]) {
			i++
		}
		best = n.at(list[i].at)
		if !n.rules.Exact {
			return best
		}
	}
	if best == nil || w.Bytes < n.rules.MaxSplit && best.size >= n.rules.MaxSplit ||
		w.Bytes >= n.rules.MaxSplit && best.size >= w.Bytes+n.rules.MaxNonSplitRounding {
		return nil
	}
	return best
}

func (n *naive) room(p piece) int64 {
	for _, o := range n.pieces {
		if o.segment == p.segment && o.at == p.at+p.size && o.state == "unmapped" {
			return p.size + o.size
		}
	}
	return p.size
}

// of returns the arena in the form of the naive one.
func of(a *Arena) (list []piece) {
	for seg := range a.Segments() {
		for m := seg.First(); m != nil; m = m.Next() {
			p := piece{at: int64(m.ptr), size: m.size, segment: int64(seg.ptr), kind: m.kind, pool: seg.Pool(), expandable: seg.expandable, state: "out"}
			switch {
			case m.Unmapped():
				p.state = "unmapped"
			case m.Free():
				p.state, p.freed = "free", m.freeSince
			case m.Used():
				p.state = "used"
			}
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b piece) int { return cmp.Compare(a.at, b.at) })
	return list
}

// TestArenaAsTheNaiveOne: random requests, frees, growth and shrinking, in two pools. After each
// the pieces are the same, and the changes are those that Fit and Freed returned before. The short
// form has fewer and shorter programs, with all combinations of rules.
func TestArenaAsTheNaiveOne(t *testing.T) {
	seeds, calls := uint64(60), int64(400)
	if testing.Short() {
		seeds, calls = 45, 300
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 5))
		rules := Rules{MaxSplit: math.MaxInt64, MaxNonSplitRounding: 20 << 20, LargeSegment: 20 << 20, Granule: 20 << 20,
			Expandable: seed%3 == 1, Exact: seed%2 == 1}
		if seed%5 == 0 {
			rules.MaxSplit = 30 << 20
		}
		pools := []*Pool{nil, {ID: [2]uint64{0, 1}}, {ID: [2]uint64{0, 2}, NoSplit: true}}
		x := &twin{t: t, r: r, naive: naive{rules: rules}, next: 1 << 30}
		x.arena.Init(&rules, 7, false)
		for now := range calls {
			x.now = now
			switch r.IntN(9) {
			case 0, 1, 2, 3:
				bytes := rules.RoundSize(1 + r.Int64N(1<<uint(9+r.IntN(17))))
				x.request(&Want{Pool: pools[r.IntN(3)], Bytes: bytes, Kind: KindFor(bytes), Requested: bytes - 1})
			case 4, 5, 6, 7:
				x.free()
			default:
				x.shrink()
			}
			x.same()
		}
	}
}

// twin is an arena together with a naive one.
type twin struct {
	t     *testing.T
	r     *rand.Rand
	arena Arena
	naive naive
	live  []*Chunk
	next  int64 // address
	now   int64
}

func (x *twin) same() {
	require.NoError(x.t, x.arena.Check(false, false))
	x.naive.sort()
	require.True(x.t, slices.Equal(x.naive.pieces, of(&x.arena)), "want %v\ngot  %v", x.naive.pieces, of(&x.arena))
}

func (x *twin) request(w *Want) {
	found, want := x.arena.Find(w), x.naive.find(w)
	if want == nil {
		require.Nil(x.t, found)
		x.grow(w)
		return
	}
	require.NotNil(x.t, found)
	require.EqualValues(x.t, want.at, found.Ptr())
	x.handOut(found, w)
}

func (x *twin) handOut(m *Chunk, w *Want) {
	before := x.naive.inactive()
	p := x.naive.at(int64(m.ptr))
	if p.state == "out" { // a segment of the driver's counts from here on
		require.Zero(x.t, before.Blocks-x.naive.inactive().Blocks)
	}
	fit := x.arena.Fit(m, w)
	rest := p.size - w.Bytes
	split := rest > 1<<20 && w.Bytes < x.naive.rules.MaxSplit
	if w.Kind == Small || x.naive.rules.Expandable {
		split = rest >= 512
	}
	if w.Pool != nil && w.Pool.NoSplit {
		split = false
	}
	p.state, p.freed = "used", 0
	if split {
		tail := *p
		p.size, tail.at, tail.size, tail.state, tail.freed = w.Bytes, p.at+w.Bytes, rest, "free", x.now
		x.naive.pieces = append(x.naive.pieces, tail)
	}
	after := x.naive.inactive()
	require.Equal(x.t, Inactive{after.Blocks - before.Blocks, after.Bytes - before.Bytes}, fit.Inactive)
	m = x.arena.HandOut(m, w, &fit, x.now)
	require.Equal(x.t, w.Requested, m.Requested)
	x.live = append(x.live, m)
}

// grow adds a segment, or maps more of an expandable one.
func (x *twin) grow(w *Want) {
	if !x.naive.rules.Expandable {
		bytes := x.naive.rules.SegmentSize(w.Bytes)
		m := x.arena.NewSegment(device.Ptr(x.next), bytes, w.Kind, w.Pool)
		x.naive.pieces = append(x.naive.pieces, piece{at: x.next, size: bytes, segment: x.next, kind: w.Kind, pool: w.Pool, state: "out"})
		x.next += bytes + 1<<20*x.r.Int64N(2)
		x.handOut(m, w)
		return
	}
	m := x.arena.Growable(w)
	if m == nil {
		bytes := int64(400 << 20)
		m = x.arena.Reserve(device.Ptr(x.next), bytes, w.Kind, w.Pool)
		x.naive.pieces = append(x.naive.pieces, piece{at: x.next, size: bytes, segment: x.next, kind: w.Kind, pool: w.Pool, expandable: true, state: "unmapped"})
		x.next += bytes
	}
	if !m.Unmapped() {
		m.TakeOut()
		*x.naive.at(int64(m.ptr)) = x.out(m)
	}
	for {
		tail, missing, merged := x.arena.Missing(m, w)
		if merged > 0 {
			x.takes(m)
		}
		if missing == 0 {
			break
		}
		bytes := RoundUp(missing, x.naive.rules.GranuleSize(w.Kind))
		x.arena.Map(tail, bytes)
		p := x.naive.at(int64(tail.ptr))
		if rest := *p; rest.size > bytes {
			rest.at, rest.size = rest.at+bytes, rest.size-bytes
			x.naive.pieces = append(x.naive.pieces, rest)
		}
		*x.naive.at(int64(tail.ptr)) = x.out(tail)
		m, _ = x.arena.Grown(m, tail)
		x.takes(m)
	}
	x.handOut(m, w)
}

// takes merges the pieces that m consists of now, all of which were free or are mapped.
func (x *twin) takes(m *Chunk) {
	x.naive.pieces = slices.DeleteFunc(x.naive.pieces, func(p piece) bool {
		inside := p.at >= int64(m.ptr) && p.at < int64(m.ptr)+m.size
		if inside {
			require.Contains(x.t, []string{"free", "out"}, p.state)
		}
		return inside
	})
	x.naive.pieces = append(x.naive.pieces, x.out(m))
}

func (x *twin) out(m *Chunk) piece {
	seg := m.Segment()
	return piece{at: int64(m.ptr), size: m.size, segment: int64(seg.ptr), kind: m.kind, pool: seg.Pool(), expandable: seg.expandable, state: "out"}
}

func (x *twin) free() {
	if len(x.live) == 0 {
		return
	}
	i := x.r.IntN(len(x.live))
	m := x.live[i]
	x.live = slices.Delete(x.live, i, i+1)
	before := x.naive.inactive()
	freed := m.Freed()
	p := x.naive.at(int64(m.ptr))
	p.state, p.freed = "free", x.now
	merged := x.naive.merge()
	after := x.naive.inactive()
	require.Equal(x.t, Inactive{after.Blocks - before.Blocks, after.Bytes - before.Bytes}, freed)
	require.Equal(x.t, merged, x.arena.Free(m, x.now))
}

// shrink returns what a flush would, or puts a part of it back as after a driver error.
func (x *twin) shrink() {
	k, pool := Kind(x.r.IntN(2)), (*Pool)(nil)
	whole, granules := x.arena.TakeReleasable(pool, k)
	size := int64(0)
	for _, m := range slices.Concat(whole, granules) {
		require.Equal(x.t, "free", x.naive.at(int64(m.ptr)).state)
		if size > m.size && len(granules) == 0 {
			x.t.Fatal("not by size")
		}
		size = m.size
	}
	for _, p := range x.naive.pieces { // all of them
		if p.state == "free" && p.kind == k && p.pool == nil && !p.expandable && x.naive.whole(&p) {
			require.True(x.t, slices.ContainsFunc(whole, func(m *Chunk) bool { return int64(m.ptr) == p.at }))
		}
	}
	for _, m := range whole {
		if x.r.IntN(3) == 0 {
			x.arena.PutBack(m)
			continue
		}
		x.naive.pieces = slices.DeleteFunc(x.naive.pieces, func(p piece) bool { return p.segment == int64(m.segment.ptr) })
		x.arena.Remove(m.segment)
	}
	for _, m := range granules {
		if x.r.IntN(3) == 0 {
			x.arena.PutBack(m)
			continue
		}
		from, to := x.arena.WholeGranules(m)
		granule := device.Ptr(x.naive.rules.GranuleSize(k))
		require.True(x.t, from >= m.ptr && to <= m.ptr+device.Ptr(m.size) && from < to && (from-m.segment.ptr)%granule == 0 && (to-from)%granule == 0)
		require.True(x.t, m.ptr+granule > from && m.ptr+device.Ptr(m.size) < to+granule, "no granule more would go")
		p := *x.naive.at(int64(m.ptr))
		*x.naive.at(p.at) = piece{at: int64(from), size: int64(to - from), segment: p.segment, kind: k, pool: p.pool, expandable: true, state: "unmapped"}
		for _, end := range [][2]int64{{p.at, int64(from)}, {int64(to), p.at + p.size}} {
			if end[0] < end[1] {
				q := p
				q.at, q.size, q.freed = end[0], end[1]-end[0], x.now
				x.naive.pieces = append(x.naive.pieces, q)
			}
		}
		x.naive.merge()
		x.arena.Unmap(m, from, int64(to-from), x.now)
	}
	for _, seg := range x.arena.RemoveEmpty(x.r.IntN(2) == 0) {
		x.naive.pieces = slices.DeleteFunc(x.naive.pieces, func(p piece) bool { return p.segment == int64(seg.ptr) })
	}
}
