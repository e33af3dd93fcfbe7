package audit

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// books are the truth about a program: the caller's blocks, the device's calls, and sums of both.
// They place nothing: a block's position and size are those that its caller sees.
type books struct {
	segments []*segment
	blocks   []*held // live or pending, in the order of their allocations
	all      counters
	pools    map[memcache.PoolID]counters
	counts   map[string]int64 // by the names of memcache.Stats
	reset    *books           // what was true at the last ResetAccumulatedStats; nil: there was none
	peak     mark
	steps    []*step // that are open
	events   []memcache.HistoryEntry
	pinned   map[memcache.PoolID]bool // private pools that graphs were captured in
}

// segment is memory from the driver.
type segment struct {
	ptr    device.Ptr
	size   int64
	stream uint64
	large  bool
	pool   memcache.PoolID
}

func (s *segment) contains(p device.Ptr) bool { return p >= s.ptr && p < s.ptr+device.Ptr(s.size) }

// held is a block that a caller owns, or has freed.
type held struct {
	memcache.Block
	requested int64
	label     memcache.Label
	segment   *segment
	users     []uint64 // streams recorded
	pending   bool
	owners    []*step
	traced    bool  // its allocation has a span
	within    *step // of its allocation; nil: none
}

func (h *held) end() device.Ptr { return h.Ptr() + device.Ptr(h.Size()) }

// stat is a quantity as PyTorch defines it.
type stat struct{ current, peak, allocated, freed int64 }

func (s *stat) change(n int64) {
	s.current += n
	s.peak = max(s.peak, s.current)
	s.allocated += max(n, 0)
	s.freed += max(-n, 0)
}

// quantity is a stat of all blocks, of the small ones and of the large ones.
type quantity [3]stat

func (q *quantity) change(large bool, n int64) {
	q[0].change(n)
	q[1+index(large)].change(n)
}

func index(large bool) int {
	if large {
		return 1
	}
	return 0
}

// counters have a quantity for each StatArray of memcache.Stats.
type counters map[string]*quantity

func newCounters() counters {
	c := counters{}
	for _, name := range []string{"Allocation", "AllocatedBytes", "Segment", "ReservedBytes", "Active", "ActiveBytes",
		"InactiveSplit", "InactiveSplitBytes", "RequestedBytes"} {
		c[name] = &quantity{}
	}
	return c
}

func (c counters) clone() counters {
	out := counters{}
	for name, q := range c {
		copied := *q
		out[name] = &copied
	}
	return out
}

// resetPeaks is ResetPeakStats.
func (c counters) resetPeaks() {
	for _, q := range c {
		for i := range q {
			q[i].peak = q[i].current
		}
	}
}

// gaps are free blocks beside used ones.
type gaps struct{ blocks, bytes int64 }

// mark is the holders of the memory at a peak.
type mark struct {
	allocated, active, graphs, reserved int64
	blocks                              []*held
}

func newBooks() *books {
	return &books{all: newCounters(), pools: map[memcache.PoolID]counters{}, counts: map[string]int64{}, pinned: map[memcache.PoolID]bool{}}
}

// at returns the counters that a segment's memory counts in.
func (b *books) at(s *segment) []counters {
	list := []counters{b.all}
	if c := b.pools[s.pool]; c != nil {
		list = append(list, c)
	}
	return list
}

func (b *books) change(s *segment, name string, n int64) {
	for _, c := range b.at(s) {
		c[name].change(s.large, n)
	}
}

// used are the blocks in a segment by address.
func (b *books) used(s *segment) (list []*held) {
	for _, h := range b.blocks {
		if h.segment == s {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(x, y *held) int { return cmp.Compare(x.Ptr(), y.Ptr()) })
	return list
}

// free are the free ranges of a segment by address.
func (b *books) free(s *segment) (list []device.Range) {
	at := s.ptr
	for _, h := range b.used(s) {
		if h.Ptr() > at {
			list = append(list, device.Range{Ptr: at, Bytes: int64(h.Ptr() - at)})
		}
		at = h.end()
	}
	if end := s.ptr + device.Ptr(s.size); end > at {
		list = append(list, device.Range{Ptr: at, Bytes: int64(end - at)})
	}
	return list
}

// split returns the free ranges beside blocks in use, in one pool or in all, by kind.
func (b *books) split(in func(*segment) bool) (now [2]gaps) {
	for _, s := range b.segments {
		if !in(s) || len(b.used(s)) == 0 {
			continue
		}
		for _, r := range b.free(s) {
			now[index(s.large)].blocks++
			now[index(s.large)].bytes += r.Bytes
		}
	}
	return now
}

// settle counts the side effects of an operation on memory of s: free ranges, and peaks.
func (b *books) settle(s *segment) {
	b.all.setSplit(b.split(func(*segment) bool { return true }))
	if c := b.pools[s.pool]; c != nil {
		c.setSplit(b.split(func(o *segment) bool { return o.pool == s.pool }))
	}
	b.tick()
}

// setSplit sets the inactive split blocks to the current ones. One operation changes those of one
// kind.
func (c counters) setSplit(now [2]gaps) {
	for i, g := range now {
		blocks, bytes := c["InactiveSplit"], c["InactiveSplitBytes"]
		if d := g.blocks - blocks[1+i].current; d != 0 {
			blocks.change(i == 1, d)
		}
		if d := g.bytes - bytes[1+i].current; d != 0 {
			bytes.change(i == 1, d)
		}
	}
}

// graphBytes are the free ranges of pools that graphs were captured in, and those beside blocks in
// use, by kind.
func (b *books) graphBytes() (held, split [2]int64) {
	for _, s := range b.segments {
		for _, r := range b.free(s) {
			if b.pinned[s.pool] {
				held[index(s.large)] += r.Bytes
				if len(b.used(s)) > 0 {
					split[index(s.large)] += r.Bytes
				}
			}
		}
	}
	return held, split
}

// tick raises the peaks to the current figures.
func (b *books) tick() {
	if n := b.all["AllocatedBytes"][0].current; n > b.peak.allocated {
		b.peak = b.now()
	}
	for _, s := range b.steps {
		s.see(b)
	}
}

// now is the mark of this moment.
func (b *books) now() mark {
	m := mark{allocated: b.all["AllocatedBytes"][0].current, active: b.all["ActiveBytes"][0].current, reserved: b.all["ReservedBytes"][0].current}
	held, _ := b.graphBytes()
	m.graphs = held[0] + held[1]
	for _, h := range b.blocks {
		if !h.pending {
			m.blocks = append(m.blocks, h)
		}
	}
	return m
}

// event adds an entry of the history.
func (b *books) event(e memcache.HistoryEntry) { b.events = append(b.events, e) }

// count adds to a count of the cache, and of each open step under the name of its figure.
func (b *books) count(name string, n int64) {
	b.counts[name] += n
	for _, s := range b.steps {
		s.count(name, n)
	}
}

// rounded is the size of the smallest block for a request.
func rounded(bytes int64) int64 { return max(512, (bytes+511)/512*512) }

// segmentFor returns the size of the request to the driver.
func segmentFor(bytes int64) int64 {
	switch n := rounded(bytes); {
	case n <= mib:
		return 2 * mib
	case n < 10*mib:
		return 20 * mib
	default:
		return (n + 2*mib - 1) / (2 * mib) * (2 * mib)
	}
}

// driverCalls adds the device's calls during a request or an emptying.
func (b *books) driverCalls(calls []call, request *request) (failed int64) {
	for _, c := range calls {
		switch {
		case c.free:
			i := slices.IndexFunc(b.segments, func(s *segment) bool { return s.ptr == c.ptr })
			s := b.segments[i]
			if len(b.used(s)) > 0 {
				panic("a segment in use was freed")
			}
			b.segments = slices.Delete(b.segments, i, i+1)
			b.change(s, "Segment", -1)
			b.change(s, "ReservedBytes", -s.size)
			b.count("NumDeviceFree", 1)
			b.event(memcache.HistoryEntry{Action: memcache.ActionSegmentFree, Address: s.ptr, Size: s.size, Stream: s.stream, Pool: s.pool})
		case c.failed:
			failed++
		default:
			s := &segment{ptr: c.ptr, size: c.bytes, stream: request.stream, large: rounded(request.bytes) > mib, pool: request.pool}
			b.segments = append(b.segments, s)
			b.change(s, "Segment", 1)
			b.change(s, "ReservedBytes", s.size)
			b.count("NumDeviceAlloc", 1)
			b.event(memcache.HistoryEntry{Action: memcache.ActionSegmentAlloc, Address: s.ptr, Size: s.size, Stream: s.stream, Pool: s.pool})
		}
		b.tick()
	}
	return failed
}

// request is one call of Alloc.
type request struct {
	bytes  int64
	stream uint64
	label  memcache.Label
	pool   memcache.PoolID
	inside []*step // the steps of the context that run
}

// alloc adds a request that ended with a block, or with nil because memory ran out.
func (b *books) alloc(r *request, block *memcache.Block, calls []call) *held {
	failed := b.driverCalls(calls, r)
	if failed > 0 {
		b.count("NumAllocRetries", 1)
		b.count("NumSyncAllStreams", 1)
	}
	if block == nil {
		b.count("NumOOMs", 1)
		b.count("Misses", 1)
		b.event(memcache.HistoryEntry{Action: memcache.ActionOOM, Size: rounded(r.bytes), Stream: r.stream,
			Free: capacity - b.all["ReservedBytes"][0].current, Label: r.label, Pool: r.pool})
		return nil
	}
	grew := slices.ContainsFunc(calls, func(c call) bool { return !c.free })
	if grew {
		b.count("Misses", 1)
	} else {
		b.count("Hits", 1)
	}
	h := &held{Block: *block, requested: r.bytes, label: r.label, owners: r.inside}
	h.segment = b.segments[slices.IndexFunc(b.segments, func(s *segment) bool { return s.contains(h.Ptr()) })]
	for _, f := range b.free(h.segment) {
		if f.Ptr == h.Ptr() && f.Bytes > h.Size() {
			b.count("Splits", 1)
		}
	}
	b.blocks = append(b.blocks, h)
	for name, n := range map[string]int64{"Allocation": 1, "AllocatedBytes": h.Size(), "Active": 1, "ActiveBytes": h.Size(), "RequestedBytes": r.bytes} {
		b.change(h.segment, name, n)
	}
	b.count("Allocations", 1)
	for _, s := range r.inside {
		s.own(h.Size())
	}
	b.event(memcache.HistoryEntry{Action: memcache.ActionAlloc, Address: h.Ptr(), Size: r.bytes, Block: h.Size(), Stream: r.stream, Serial: h.Serial(),
		Label: r.label, Grew: grew, Pool: r.pool})
	b.settle(h.segment)
	return h
}

// freed adds a free. The block is pending if other streams use it.
func (b *books) freed(h *held) {
	b.change(h.segment, "Allocation", -1)
	b.change(h.segment, "AllocatedBytes", -h.Size())
	b.count("Frees", 1)
	for _, s := range h.owners {
		s.own(-h.Size())
	}
	h.pending = true
	b.event(h.entry(memcache.ActionFreeRequested))
	if len(h.users) == 0 {
		b.events[len(b.events)-1].AtOnce = true
		b.completed(h)
	} else {
		b.tick()
	}
}

func (h *held) entry(a memcache.Action) memcache.HistoryEntry {
	return memcache.HistoryEntry{Action: a, Address: h.Ptr(), Size: h.requested, Block: h.Size(), Stream: h.segment.stream, Serial: h.Serial(),
		Label: h.label, Pool: h.segment.pool}
}

// completed adds the end of a free: the block's memory is free.
func (b *books) completed(h *held) {
	for _, f := range b.free(h.segment) {
		if f.Ptr+device.Ptr(f.Bytes) == h.Ptr() || f.Ptr == h.end() {
			b.count("Merges", 1)
		}
	}
	b.blocks = slices.DeleteFunc(b.blocks, func(o *held) bool { return o == h })
	b.change(h.segment, "Active", -1)
	b.change(h.segment, "ActiveBytes", -h.Size())
	b.change(h.segment, "RequestedBytes", -h.requested)
	b.event(h.entry(memcache.ActionFreeCompleted))
	b.settle(h.segment)
}

// resetTotals is ResetAccumulatedStats.
func (b *books) resetTotals() { b.reset = &books{all: b.all.clone(), counts: maps.Clone(b.counts)} }

// resetPeaks is ResetPeakStats.
func (b *books) resetPeaks() {
	b.all.resetPeaks()
	b.peak = b.now()
}
