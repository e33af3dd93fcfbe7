// Package model is a second allocator with the rules of package memcache, for tests. It shares no
// code with it: blocks are in plain lists in address order, every search visits all of them, and
// each statistic is recounted after each step. It is simple so that it is correct, and supports one
// goroutine and no device.
//
// It was written from a description of PyTorch's allocator and of memcache's differences from it.
package model

import (
	"math"
	"slices"
	"sort"
)

// Options are an allocator's options; sizes are bytes.
type Options struct {
	MaxSplit            int64 // 0: no limit
	MaxNonSplitRounding int64 // 0: the large segment
	LargeSegment        int64 // 0: 20 MiB
	Divisions           [16]int
	Threshold           float64 // for garbage collection; 0: none
	Limit               int64   // of the reserved bytes; negative: none
	Total               int64   // the device's memory
	Expandable          bool
	Granule             int64 // of large expandable segments; 0: the large segment
	Remap               bool
	Exact               bool
	NoCaching           bool
	Rejects             bool // requests beyond the limit fail without a retry
}

// Driver is the device. A false result means that there is no memory.
type Driver interface {
	Alloc(bytes int64) (at int64, ok bool)
	Free(at, bytes int64)
	Reserve(bytes int64) (at int64, ok bool)
	Unreserve(at int64)
	Map(at, bytes int64) bool
	Unmap(at, bytes int64)
}

// Model is an allocator.
type Model struct {
	o       Options
	driver  Driver
	streams map[uint64]*stream
	order   []uint64 // the streams' IDs, ascending
	pools   []*Pool  // the default pool first
	lenders table    // with Exact
	given   table    // released pools, with Exact
	events  []*event // the oldest first
	aside   []*Block // deferred frees: freed while a pool was entered
	entered int
	clock   [2]int64 // for the ages of free segments
	scopes  []*Scope // the open ones

	// Reclaim is called when there is no memory, as long as it returns that it freed something.
	Reclaim func(need int64) bool

	Stats Stats
	Trace []Entry // the operations, if Tracing is set
	// Tracing keeps the Trace.
	Tracing bool
}

type stream struct {
	closed bool
	gates  []*gate // the gates before the work that was queued last
}

// gate holds up a stream until Finish.
type gate struct{ of *stream }

// event is an event that a freed block waits for.
type event struct {
	stream uint64
	block  *Block
	behind []*gate
}

// shut returns the gates that are not open yet.
func shut(gates []*gate) []*gate {
	return slices.DeleteFunc(slices.Clone(gates), func(g *gate) bool { return g.of == nil })
}

func (e *event) ready() bool { return len(shut(e.behind)) == 0 }

// Pool is a set of segments.
type Pool struct {
	lends, whole bool
	released     bool
	number       int
	calls        int // requests that got memory from the driver, minus calls that returned some
}

// Kind distinguishes the small pool from the large one.
type Kind int

// The kinds.
const (
	Small Kind = iota
	Large
)

// Segment is memory from the driver, or a range of addresses.
type Segment struct {
	At, Bytes  int64
	Stream     uint64 // the owner; for an orphan the former owner
	Kind       Kind
	Pool       *Pool
	Expandable bool
	Blocks     []*Block // they tile it

	orphan bool  // of a closed stream, and serves no request
	mapped bool  // expandable, and has had memory
	unit   int64 // by which an expandable one grows and shrinks
}

// State is the state of a block.
type State int

// The states of a block.
const (
	Free State = iota
	Used
	Pending // freed, and waiting for events
	Hole    // addresses without memory
)

// Block is a part of a segment.
type Block struct {
	At, Size, Requested int64
	State               State
	Segment             *Segment

	uses   []uint64 // streams that were recorded
	inside []uint64 // those recorded while a pool was entered
	events int      // not yet seen complete
	born   int64
	scopes []*Scope
}

// Entry is one operation.
type Entry struct {
	Action   string
	At, Size int64
	Stream   uint64
}

// Failure is the reason why a call failed.
type Failure int

// The failures.
const (
	None Failure = iota
	OutOfMemory
	Released
	Closed
)

const (
	mib  = 1 << 20
	unit = 512
	none = int64(1) << 62

	// orphans stands for the streams whose segments serve no requests any more. It comes after all
	// streams.
	orphans = math.MaxUint64
)

// owner returns the stream that the segment's blocks serve.
func (g *Segment) owner() uint64 {
	if g.orphan {
		return orphans
	}
	return g.Stream
}

// New returns an empty allocator.
func New(o Options, d Driver) *Model {
	m := &Model{o: o.withDefaults(), driver: d, streams: map[uint64]*stream{}, pools: []*Pool{{}}}
	m.Stats.segments = map[*Segment]bool{}
	m.Open(orphans)
	return m
}

// SetOptions changes the options from now on.
func (m *Model) SetOptions(o Options) {
	m.o = o.withDefaults()
	m.step()
}

func (o Options) withDefaults() Options {
	if o.LargeSegment == 0 {
		o.LargeSegment = 20 * mib
	}
	if o.MaxSplit == 0 || o.NoCaching {
		o.MaxSplit = none
	}
	if o.MaxNonSplitRounding == 0 {
		o.MaxNonSplitRounding = o.LargeSegment
	}
	if o.Granule == 0 {
		o.Granule = o.LargeSegment
	}
	if o.NoCaching {
		o.Expandable, o.Remap = false, false
	}
	return o
}

// Default returns the default pool.
func (m *Model) Default() *Pool { return m.pools[0] }

// NewPool creates a private pool.
func (m *Model) NewPool(lends, whole bool) *Pool {
	p := &Pool{lends: lends, whole: whole, number: len(m.pools)}
	if lends {
		m.lenders.add(p)
	}
	m.pools = append(m.pools, p)
	return p
}

// Number returns the number of a pool; the default one has 0.
func (m *Model) Number(p *Pool) int {
	for i, o := range m.pools {
		if o == p {
			return i
		}
	}
	return -1
}

// Release ends a pool.
func (m *Model) Release(p *Pool) {
	p.released = true
	m.lenders.remove(p)
	m.given.add(p)
}

// Open creates a stream.
func (m *Model) Open(id uint64) {
	m.streams[id] = &stream{}
	m.order = append(m.order, id)
	sort.Slice(m.order, func(i, j int) bool { return m.order[i] < m.order[j] })
}

// Hold makes the work that is queued on the stream from now on wait for Finish.
func (m *Model) Hold(id uint64) {
	s := m.streams[id]
	s.gates = append(s.gates, &gate{s})
}

// Finish completes the queued work of the stream, and of those that it waits for.
func (m *Model) Finish(id uint64) {
	for _, g := range m.streams[id].gates {
		g.of = nil
	}
}

// WaitStream makes a stream wait for the queued work of another one. Frees of its blocks no longer
// wait for that work.
func (m *Model) WaitStream(id, other uint64) {
	if id == other {
		return
	}
	m.streams[id].gates = append(m.streams[id].gates, shut(m.streams[other].gates)...)
	var done []*Block
	m.events = slices.DeleteFunc(m.events, func(e *event) bool {
		if e.stream != other || e.block.Segment.Stream != id {
			return false
		}
		if e.block.events--; e.block.events == 0 {
			done = append(done, e.block)
		}
		return true
	})
	for _, b := range done {
		m.complete(b)
	}
}

// Enter marks that a pool is entered, which matters with Exact.
func (m *Model) Enter() { m.entered++ }

// Leave undoes one Enter.
func (m *Model) Leave() { m.entered-- }

// aloof reports whether a pool is entered, with Exact.
func (m *Model) aloof() bool { return m.o.Exact && m.entered > 0 }

// Close closes a stream.
func (m *Model) Close(id uint64) {
	m.Finish(id)
	m.streams[id].closed = true
}

// SetLimit limits the reserved bytes; a negative limit is none.
func (m *Model) SetLimit(bytes int64) { m.o.Limit = bytes }

// collects reports whether garbage collection is on.
func (m *Model) collects() bool { return m.o.Threshold > 0 && m.o.Limit >= 0 }

// Record records that the stream uses the block.
func (m *Model) Record(b *Block, id uint64) {
	if id == b.Segment.Stream || m.streams[id].closed {
		return
	}
	if m.aloof() {
		b.inside = append(b.inside, id)
	}
	if !slices.Contains(b.uses, id) {
		b.uses = append(b.uses, id)
	}
}

// Erase undoes Record.
func (m *Model) Erase(b *Block, id uint64) {
	is := func(u uint64) bool { return u == id }
	b.uses, b.inside = slices.DeleteFunc(b.uses, is), slices.DeleteFunc(b.inside, is)
}

// round returns the size of the block for a request.
func (m *Model) round(bytes int64) int64 {
	if m.o.NoCaching {
		return bytes
	}
	if bytes < unit {
		return unit
	}
	floor, log := int64(1), 0
	for floor*2 <= bytes {
		floor, log = floor*2, log+1
	}
	d := int64(m.o.Divisions[min(max(log-20, 0), 15)])
	if d > 1 && bytes > unit*d {
		for at := floor; ; at += floor / d {
			if at >= bytes {
				return at
			}
		}
	}
	return (bytes + unit - 1) / unit * unit
}

func kindOf(size int64) Kind {
	if size > mib {
		return Large
	}
	return Small
}

// segmentFor returns the size to request from the driver.
func (m *Model) segmentFor(size int64) int64 {
	switch {
	case m.o.NoCaching:
		return size
	case size <= mib:
		return 2 * mib
	case size < 10*mib:
		return m.o.LargeSegment
	}
	return (size + 2*mib - 1) / (2 * mib) * (2 * mib)
}

func (m *Model) trace(action string, at, size int64, stream uint64) {
	if m.Tracing {
		m.Trace = append(m.Trace, Entry{action, at, size, stream})
	}
}

// Segments returns all segments, by address.
func (m *Model) Segments() []*Segment {
	list := make([]*Segment, 0, len(m.Stats.segments))
	for g := range m.Stats.segments {
		list = append(list, g)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].At < list[j].At })
	return list
}

func (g *Segment) index(b *Block) int {
	for i, o := range g.Blocks {
		if o == b {
			return i
		}
	}
	panic("the block is in another segment")
}

func (g *Segment) neighbour(b *Block, by int) *Block {
	i := g.index(b) + by
	if i < 0 || i >= len(g.Blocks) {
		return nil
	}
	return g.Blocks[i]
}

// insert inserts n before b, or after it if after is 1.
func (g *Segment) insert(n, b *Block, after int) {
	i := g.index(b) + after
	g.Blocks = append(g.Blocks, nil)
	copy(g.Blocks[i+1:], g.Blocks[i:])
	g.Blocks[i] = n
}

// swallow merges the neighbour n into b.
func (g *Segment) swallow(b, n *Block) {
	i := g.index(n)
	g.Blocks = append(g.Blocks[:i], g.Blocks[i+1:]...)
	b.At = min(b.At, n.At)
	b.Size += n.Size
}
