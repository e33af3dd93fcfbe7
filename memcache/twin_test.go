package memcache

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache/internal/model"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// twin is the model beside a caller's cache. It makes the same calls, on a driver of its own that
// returns the same addresses, and must return the same results.
type twin struct {
	caller *caller
	model  *model.Model
	pools  []*model.Pool
	given  []*model.Pool // as the caller's
	scopes []*model.Scope
	asks   int // the reclaimer's frees still to do

	driver modelDriver
	calls  []driverCall // of the cache
	seen   int          // entries of the history
	turn   int
}

// driverCall is a successful driver call.
type driverCall struct {
	op        null.Op
	at, bytes int64
}

// places are the addresses of segments and ranges, in an order that does not ascend.
type places struct{ segments, ranges int64 }

func (p *places) segment() int64 { p.segments++; return 1<<40 + (p.segments^0x15)<<27 }
func (p *places) reserve() int64 { p.ranges++; return 1<<55 + (p.ranges^1)<<45 }

// pair makes the caller compare its cache with the model, from the start.
func (p *caller) pair() {
	t := &twin{caller: p}
	t.driver = modelDriver{twin: t, free: p.o.capacity}
	t.model = model.New(p.modelOptions(p.o.config), &t.driver)
	t.model.Tracing = true
	t.model.Reclaim = t.reclaim
	for _, s := range p.streams[:callerStreams] {
		t.model.Open(s.ID())
	}
	if p.far != nil {
		t.model.Open(t.stream(callerStreams))
	}
	p.placed, p.note = new(places), t.after
	if err := p.cache.RecordHistory(HistoryOptions{Entries: 512}); err != nil {
		panic(err)
	}
	p.twin = t
}

// modelOptions returns options for the model, with the cache's limit.
func (p *caller) modelOptions(o Config) model.Options {
	return model.Options{
		MaxSplit: o.MaxSplitSizeMB * mib, MaxNonSplitRounding: o.MaxNonSplitRoundingMB * mib, LargeSegment: o.LargeSegmentSizeMB * mib,
		Divisions: o.RoundupPower2Divisions, Threshold: o.GarbageCollectionThreshold, Limit: modelLimit(p.cache.ledger.limit), Total: p.o.capacity,
		Expandable: o.ExpandableSegments, Granule: o.ExpandableGranuleMB * mib, Remap: o.ExpandableRemap, Exact: o.Exact, NoCaching: o.NoCaching, Rejects: o.ThrowOnCudaMallocOOM,
	}
}

// choose chooses the address of a segment or range.
func (p *places) choose(c *null.Call) {
	switch c.Op {
	case null.OpAlloc:
		c.Ptr = device.Ptr(p.segment())
	case null.OpReserve:
		c.Ptr = device.Ptr(p.reserve())
	}
}

// after records a call of the cache's driver.
func (t *twin) after(c null.Call) {
	if c.Op == null.OpUnreserve {
		c.Bytes = 0
	}
	if c.Op != null.OpSynchronize {
		t.calls = append(t.calls, driverCall{c.Op, int64(c.Ptr), c.Bytes})
	}
}

// modelDriver is the model's device.
type modelDriver struct {
	twin     *twin
	free     int64
	failures int
	placed   places
	calls    []driverCall
}

func (d *modelDriver) fails() bool {
	if d.failures > 0 {
		d.failures--
		return true
	}
	return false
}

func (d *modelDriver) note(op null.Op, at, bytes int64) {
	d.calls = append(d.calls, driverCall{op, at, bytes})
}

func (d *modelDriver) Alloc(bytes int64) (int64, bool) {
	if d.fails() {
		return 0, false
	}
	at := d.placed.segment()
	if bytes > d.free {
		return 0, false
	}
	d.free -= bytes
	d.note(null.OpAlloc, at, bytes)
	return at, true
}

func (d *modelDriver) Free(at, bytes int64) {
	d.free += bytes
	d.note(null.OpFree, at, bytes)
}

func (d *modelDriver) Reserve(bytes int64) (int64, bool) {
	at := d.placed.reserve()
	d.note(null.OpReserve, at, bytes)
	return at, true
}

func (d *modelDriver) Unreserve(at int64) { d.note(null.OpUnreserve, at, 0) }

func (d *modelDriver) Map(at, bytes int64) bool {
	if d.fails() || bytes > d.free {
		return false
	}
	d.free -= bytes
	d.note(null.OpMap, at, bytes)
	return true
}

func (d *modelDriver) Unmap(at, bytes int64) {
	d.free += bytes
	d.note(null.OpUnmap, at, bytes)
}

func (t *twin) stream(i int) uint64 { return t.caller.streams[i].ID() }

func (t *twin) pool(i int) *model.Pool {
	if i == 0 {
		return t.model.Default()
	}
	return t.pools[i-1]
}

func (t *twin) alloc(v *slot, b Block, err error, bytes int64, stream, pool int) error {
	var scope *model.Scope
	if n := len(t.scopes); n > 0 {
		scope = t.scopes[n-1]
	}
	m, failure := t.model.Alloc(bytes, t.stream(stream), t.pool(pool), scope)
	if (failure == model.OutOfMemory) != errors.Is(err, ErrOutOfMemory) || (failure == model.None) != (err == nil) {
		return fmt.Errorf("the model says %d, the cache %w", failure, err)
	}
	if m != nil {
		if int64(b.Ptr()) != m.At || b.Size() != m.Size || b.StreamID() != m.Segment.Stream {
			return fmt.Errorf("%d bytes on stream %d: the model places %d bytes at %#x, the cache %d at %#x", bytes, t.stream(stream), m.Size, m.At, b.Size(), b.Ptr())
		}
		v.m = m
	}
	return t.compare()
}

func (t *twin) free(v *slot) error {
	t.model.Free(v.m)
	v.m = nil
	return t.compare()
}

func (t *twin) reclaim(int64) bool {
	if t.caller.remove == nil {
		return false
	}
	for i := range t.caller.slots {
		if v := &t.caller.slots[i]; t.asks > 0 && v.m != nil {
			t.asks--
			t.model.Free(v.m)
			v.m = nil
			return true
		}
	}
	return false
}

func (t *twin) record(v *slot, stream int) {
	if v.m != nil {
		t.model.Record(v.m, t.stream(stream))
	}
}

func (t *twin) newPool(o PoolOptions) {
	t.pools = append(t.pools, t.model.NewPool(o.UseOnOOM, o.NoSplit))
}

func (t *twin) release(i int) {
	t.given = append(t.given[max(0, len(t.given)-3):], t.pools[i])
	t.model.Release(t.pools[i])
	t.pools = slices.Delete(t.pools, i, i+1)
}

// emptyPool is Pool.EmptyCache of a pool that was not released.
func (t *twin) emptyPool(i int) { t.model.EmptyPool(t.pools[i]) }

// releasePool is release, followed by a request that is refused.
func (t *twin) releasePool(i int) {
	t.release(i)
	if _, failure := t.model.Alloc(1, t.stream(0), t.given[len(t.given)-1], nil); failure != model.Released {
		panic("the model's pool is not released")
	}
}

func (t *twin) openScope() {
	var outer *model.Scope
	if n := len(t.scopes); n > 0 {
		outer = t.scopes[n-1]
	}
	t.scopes = append(t.scopes, t.model.OpenScope(outer))
}

// endScopes ends the scopes from index n on, after a comparison.
func (t *twin) endScopes(n int) error {
	for i, s := range t.scopes[n:] {
		t.model.EndScope(s)
		if err := t.compareScope(n + i); err != nil {
			return err
		}
	}
	t.scopes = t.scopes[:n]
	return nil
}

// compare compares everything that a call can change.
func (t *twin) compare() error {
	t.turn++
	if err := t.compareDrivers(); err != nil {
		return err
	}
	if err := t.compareStats(); err != nil {
		return err
	}
	if err := t.compareHistory(); err != nil {
		return err
	}
	for i := range t.scopes {
		if t.turn%4 != 0 {
			break
		}
		if err := t.compareScope(i); err != nil {
			return err
		}
	}
	if t.turn%64 == 0 {
		return t.compareSegments()
	}
	return nil
}

func (t *twin) compareDrivers() error {
	got, want := t.calls, t.driver.calls
	t.calls, t.driver.calls = got[:0], want[:0]
	if slices.Equal(got, want) {
		return nil
	}
	// Ranges are returned in any order.
	last := func(c driverCall) bool { return c.op == null.OpUnreserve }
	for _, list := range [2][]driverCall{got, want} {
		if i := slices.IndexFunc(list, last); i >= 0 {
			slices.SortFunc(list[i:], func(a, b driverCall) int { return cmp.Or(cmp.Compare(a.op, b.op), cmp.Compare(a.at, b.at)) })
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("the driver's calls are %v, the model's %v", got, want)
	}
	return nil
}

// statistics returns all statistics in a fixed order.
type statistics struct {
	stats  [29]model.Stat
	counts [11]int64
}

func (t *twin) compareStats() error {
	var got, want statistics
	st := t.caller.cache.Stats()
	for i, q := range st.quantities() {
		got.stats[i] = model.Stat(*q)
	}
	for i, n := range st.counts() {
		got.counts[i] = *n
	}
	m := &t.model.Stats
	for i, a := range m.Arrays {
		copy(want.stats[3*i:], a[:])
	}
	want.stats[27], want.stats[28] = m.OversizeBlocks, m.OversizeSegments
	want.counts = [...]int64{m.Retries, m.OOMs, m.Flushes, m.Allocs, m.Frees, m.Hits, m.Misses, m.Splits, m.Merges, 0, m.Rejections}
	if got != want {
		for i := range got.stats {
			if got.stats[i] != want.stats[i] {
				return fmt.Errorf("statistic %d is %+v, the model's %+v", i, got.stats[i], want.stats[i])
			}
		}
		return fmt.Errorf("the counts are %v, the model's %v", got.counts, want.counts)
	}
	return nil
}

func (t *twin) compareHistory() error {
	h := t.caller.cache.shards.history.Load()
	trace := t.model.Trace
	t.model.Trace = trace[:0]
	if h.ring.n-t.seen != len(trace) || len(trace) > len(h.ring.list) {
		return fmt.Errorf("the history has %d new entries, the model's %v", h.ring.n-t.seen, trace)
	}
	for _, want := range trace {
		e := h.ring.list[t.seen%len(h.ring.list)]
		t.seen++
		if got := (model.Entry{Action: string(e.Action), At: int64(e.Address), Size: e.Size, Stream: e.Stream}); got != want {
			return fmt.Errorf("the history says %v, the model's %v", got, want)
		}
	}
	return nil
}

func (t *twin) compareScope(i int) error {
	s, m := t.caller.scopes[i], t.scopes[i]
	t.model.Count(m)
	if got, want := s.Own(), (Own{Live: m.Live, Peak: m.Peak, Allocations: m.Own}); got != want {
		return fmt.Errorf("scope %d has %+v of its own, the model's %+v", i, got, want)
	}
	want := Window{Allocated: Level(m.Allocated), Requested: Level(m.Requested), Reserved: Level(m.Reserved),
		Allocations: m.Allocations, Hits: m.Hits, Misses: m.Misses, DriverAllocs: m.Allocs,
		Frees: m.Frees, Retries: m.Retries, OutOfMemory: m.OOMs}
	if got := s.Window(); got != want {
		return fmt.Errorf("the window of scope %d is %+v, the model's %+v", i, got, want)
	}
	return nil
}

// snapshot adds the history entry of a snapshot to the model.
func (t *twin) snapshot() {
	t.model.Trace = append(t.model.Trace, model.Entry{Action: string(ActionSnapshot), Size: t.model.Stats.Arrays[model.ActiveBytes][0].Current})
}

// compareSegments compares all segments and blocks.
func (t *twin) compareSegments() error {
	got := t.caller.cache.Snapshot().Segments
	t.snapshot()
	want := t.segments()
	if len(got) != len(want) {
		return fmt.Errorf("%d segments, the model has %d", len(got), len(want))
	}
	for i := range got {
		if g, w := &got[i], &want[i]; !sameSegment(g, w) {
			return fmt.Errorf("segment %+v, the model's %+v", g, w)
		}
	}
	return nil
}

// sameSegment compares everything that the model tracks.
func sameSegment(a, b *SegmentSnapshot) bool {
	return a.Address == b.Address && a.TotalSize == b.TotalSize && a.AllocatedSize == b.AllocatedSize && a.ActiveSize == b.ActiveSize &&
		a.RequestedSize == b.RequestedSize && a.Stream == b.Stream && a.Pool == b.Pool && a.PoolID == b.PoolID && a.Expandable == b.Expandable &&
		slices.EqualFunc(a.Blocks, b.Blocks, func(a, b BlockSnapshot) bool {
			return a.Address == b.Address && a.Size == b.Size && a.RequestedSize == b.RequestedSize && a.State == b.State && slices.Equal(a.Streams, b.Streams)
		})
}

// segments returns the model's memory as a snapshot.
func (t *twin) segments() (list []SegmentSnapshot) {
	for _, g := range t.model.Segments() {
		open := false
		for _, b := range g.Blocks {
			if b.State == model.Hole {
				open = false
				continue
			}
			if !open {
				open = true
				list = append(list, SegmentSnapshot{Address: device.Ptr(b.At), Stream: g.Stream, Pool: placement.Kind(g.Kind).String(),
					PoolID: PoolID{0, uint64(t.model.Number(g.Pool))}, Expandable: g.Expandable})
			}
			l := &list[len(list)-1]
			s := BlockSnapshot{Address: device.Ptr(b.At), Size: b.Size, RequestedSize: b.Requested, State: BlockInactive}
			switch b.State {
			case model.Used:
				s.State = BlockAllocated
				l.AllocatedSize += b.Size
			case model.Pending:
				s.State = BlockPendingFree
			}
			s.Streams = t.model.Streams(b)
			if b.State != model.Free {
				l.ActiveSize += b.Size
				l.RequestedSize += b.Requested
			}
			l.TotalSize += b.Size
			l.Blocks = append(l.Blocks, s)
		}
	}
	return list
}

// modelLimit returns a limit in the model's form.
func modelLimit(limit int64) int64 {
	if limit == math.MaxInt64 {
		return -1
	}
	return limit
}
