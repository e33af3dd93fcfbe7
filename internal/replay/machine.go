package replay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// machine is a cache on a null device that makes a program's calls. The device reproduces the
// conditions of the recording: it returns the addresses that PyTorch got, refuses what its driver
// refused, and completes frees when the recording does. For that, a stream of its own holds up each
// free that was not complete at once. The stream's ID decides the order in which the cache sees the
// completions.
type machine struct {
	p       *recording.Program
	dev     *null.Device
	of      device.Device // the device as the cache sees it
	cache   *memcache.Cache
	byIndex []device.Stream          // in the order of p.Streams
	byID    map[uint64]device.Stream // the same streams

	firstPending uint64
	options      map[int]memcache.Config // parsed options, by number
	lastUse      []int                   // the step of each stream's last request
	blocks       []memcache.Block
	// by hand-out: frees whose completion the program has not seen
	held map[int32]pendingFree

	completed []int32 // by hand-out: the entry that completes its free; -1: none

	places map[place][]device.Ptr // addresses of segments and reservations

	// State of the current call:
	expect []recording.Entry // its driver calls in the recording
	got    []recording.Entry // its driver calls in the cache; adjacent mappings are joined
	wanted int               // number of entries of expect that the cache has passed
	undo   undo
	// the driver has no memory beyond the recorded calls
	full bool

	pools pools

	requested *recording.Step // the current or last request
	// the current or last freed hand-out, of frees that are not complete at once
	freed int32

	cost
	exactly bool              // of a recording of ours: the driver repeats its recorded results
	ranges  []recording.Entry // recorded reservations of addresses
}

// pendingFree is a freed block whose streams are held up, or a block that will be freed so.
type pendingFree struct {
	streams  []*null.Stream
	releases []func()
	freed    bool
	// freed while a pool was entered: 1 + the number of earlier calls that take up such frees; 0:
	// it was not
	deferred int
}

// firstPending returns the first ID of the streams that hold up one free each: the middle of the
// widest gap between recorded IDs. The IDs ascend in the recorded order of completions, which is
// then the order in which the cache sees them.
func firstPending(streams []uint64) uint64 {
	ids := append(slices.Sorted(slices.Values(streams)), math.MaxUint64)
	var before, widest, first uint64
	for _, id := range ids {
		if gap := id - before; gap > widest {
			widest, first = gap, before+gap/2
		}
		before = id
	}
	return first
}

// newMachine makes a cache under config, on a device with the recorded memory and streams. With
// exactly, the driver repeats its results in the recording, which must be ours. begin creates the
// initial state: restore, place, or nothing.
func newMachine(p *recording.Program, config memcache.Config, b *budget.Budget, exactly bool, begin func(*machine) error) (*machine, error) {
	c := cost{budget: b, streams: len(p.Streams)}
	refuse := func(err error) (*machine, error) {
		c.end()
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	if err := c.hold(handOutMemory*int64(p.Blocks) + liveMemory*int64(p.MostLive) + streamMemory*int64(len(p.Streams))); err != nil {
		return refuse(err)
	}
	if c.work(machineWork + len(p.Steps)/4 + 100*len(p.Streams)); c.err != nil {
		return refuse(c.err)
	}
	dev, err := null.New(null.Config{Capacity: totalMemory(p)})
	if err != nil {
		return refuse(err)
	}
	var of device.Device = dev
	if p.HostMemory {
		of = hostDevice{dev}
	}
	cache, err := memcache.New(of, config)
	if err != nil {
		return refuse(errors.Join(err, dev.Close()))
	}
	m := &machine{cost: c, exactly: exactly, of: of, p: p, dev: dev, cache: cache, blocks: make([]memcache.Block, p.Blocks), held: make(map[int32]pendingFree), byID: make(map[uint64]device.Stream), firstPending: firstPending(p.Streams), options: make(map[int]memcache.Config)}
	if err := m.start(begin); err != nil {
		m.close()
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	dev.SetScript(null.Script{Before: m.before, After: m.after})
	return m, nil
}

// start makes the recorded streams and pools, and calls begin.
func (m *machine) start(begin func(*machine) error) error {
	p := m.p
	for _, id := range p.Streams {
		s, err := m.dev.NewStreamWithID(id)
		if err != nil {
			return err
		}
		m.byIndex = append(m.byIndex, m.taken(s))
		m.byID[id] = m.byIndex[len(m.byIndex)-1]
	}
	m.lastUse, m.completed = make([]int, len(p.Streams)), make([]int32, p.Blocks)
	if p.Start != nil {
		copy(m.completed, p.Start.Completed)
	}
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Kind == recording.StepFree {
			m.completed[s.Block] = s.Completed
		}
		if k := p.Steps[i].Kind; k == recording.StepAlloc || k == recording.StepOOM {
			m.lastUse[p.Steps[i].Stream] = i
		}
	}
	if !p.Calls && !p.Own {
		for range p.Pools {
			if err := m.add(); err != nil {
				return err
			}
		}
	}
	m.pools = pools{cache: m.cache, ids: p.Pools, byNumber: make(map[uint64]*privatePool), takenUp: 1}
	if err := m.pools.addAll(p); err != nil {
		return err
	}
	if err := begin(m); err != nil {
		return fmt.Errorf("the start: %w", err)
	}
	return nil
}

// close releases everything.
func (m *machine) close() {
	m.over = true
	for block := range m.held {
		m.complete(block)
	}
	// blocks are live, as at the end of the recording
	_ = m.cache.Close()
	for _, s := range m.byIndex {
		_ = s.Close()
	}
	_ = m.dev.Close()
	m.end()
}

// before chooses the recorded addresses, and completes frees when the cache waits.
func (m *machine) before(c *null.Call) {
	if c.Err = m.driver(c.Op); c.Err != nil {
		return
	}
	m.undo.before(c)
	var next recording.Entry
	if m.wanted < len(m.expect) {
		next = m.expect[m.wanted]
	}
	switch c.Op {
	case null.OpAlloc:
		grows := next.Action == recording.SegmentAlloc && next.Size == c.Bytes
		if grows && m.dev.Vacant(next.Addr, c.Bytes) {
			c.Ptr = next.Addr
		}
		m.usePlace(recording.SegmentAlloc, c)
		if m.full && !grows {
			c.Err = m.outOfMemory("Alloc", c.Bytes)
		}
	case null.OpReserve:
		if m.exactly {
			m.reserve(c)
			break
		}
		m.usePlace(recording.Reserve, c)
		at := next.Addr
		if next.Action != recording.SegmentMap {
			at = m.laterMapping() // this call fails
		}
		if at != 0 && m.dev.Vacant(at, c.Bytes) {
			c.Ptr = at
		}
	case null.OpMap:
		if m.full && !(next.Action == recording.SegmentMap && next.Addr == c.Ptr) && !m.continues(c) {
			c.Err = m.outOfMemory("Map", c.Bytes)
		}
	case null.OpSynchronize:
		m.work(2 * len(m.held))
		// a flush waits for all freed blocks, or for those of a pool
		for block, h := range m.held {
			if h.freed && (m.pools.flushed == 0 || m.p.Home(block) == m.pools.flushed) {
				m.complete(block)
			}
		}
	}
}

// place is a kind of memory that has addresses in a recording: segments or reservations of a size.
type place struct {
	action recording.Action
	bytes  int64
}

// usePlace gives a call the next recorded address of such calls, if it is free.
func (m *machine) usePlace(a recording.Action, c *null.Call) {
	at := place{a, c.Bytes}
	if list := m.places[at]; len(list) > 0 {
		m.places[at] = list[1:]
		if m.dev.Vacant(list[0], c.Bytes) {
			c.Ptr = list[0]
		}
	}
}

// continues reports whether a mapping is the next part of a recorded one.
func (m *machine) continues(c *null.Call) bool {
	if m.wanted == 0 || m.wanted > len(m.expect) || len(m.got) == 0 {
		return false
	}
	got, want := m.got[len(m.got)-1], m.expect[m.wanted-1]
	return got.Action == recording.SegmentMap && got.Addr == want.Addr && got.Addr+device.Ptr(got.Size) == c.Ptr && got.Size < want.Size
}

// outOfMemory returns the driver's error when it has no memory.
func (m *machine) outOfMemory(op string, bytes int64) error {
	return &device.Error{Op: op, Device: "null", Bytes: bytes, Code: device.CodeOutOfMemory,
		Detail: "as in the recording", Err: device.ErrOutOfMemory}
}

// after records a completed driver call.
func (m *machine) after(c null.Call) {
	m.count(c.Op)
	m.got = m.undo.append(m.got, c)
	m.wanted = len(m.got)
}

// begin starts a call; its recorded driver calls are among entries.
func (m *machine) begin(entries []recording.Entry, full bool) {
	m.got, m.wanted, m.full = m.got[:0], 0, full
	m.expect, m.ranges = m.expect[:0], m.ranges[:0]
	for _, e := range entries {
		if e.Action == recording.Reserve {
			m.ranges = append(m.ranges, e)
		}
		if e.Action.Driver() {
			m.expect = join(m.expect, e)
		}
	}
}

// allocate makes the call of a step.
func (m *machine) allocate(s *recording.Step) (memcache.Block, error) {
	m.requested = s
	defer m.pools.takeUp()
	m.work(2 * len(m.held)) // their events are queried
	b, err := m.cache.Alloc(m.pools.context(s.Pool), m.p.Entries[s.Entry].Size, m.byIndex[s.Stream])
	if err != nil {
		m.work(oomWork)
		m.walk(m.p.MostLive)
	}
	if s.Block >= 0 {
		m.blocks[s.Block] = b
	}
	return b, err
}

// release makes the free of a step. With later, the free is not complete at once.
func (m *machine) release(s *recording.Step, later bool) error {
	b := m.blocks[s.Block]
	if !later {
		return b.Free()
	}
	if b.IsZero() {
		return nil // its allocation failed in this replay
	}
	h := m.held[s.Block]
	if len(h.streams) == 0 { // the streams that use it are not recorded
		if err := m.use(s.Block, 0); err != nil {
			return err
		}
		h = m.held[s.Block]
	}
	h.freed, m.freed = true, s.Block
	if m.pools.entered > 0 {
		h.deferred = m.pools.takenUp
	}
	m.held[s.Block] = h
	return b.Free()
}

// use records a stream on the block of a hand-out: the replacement for the recorded stream of an
// index, which is held up until the free is complete.
func (m *machine) use(block, index int32) error {
	h := m.held[block]
	order := uint64(m.completed[block])
	if m.completed[block] < 0 {
		order = uint64(len(m.p.Entries)) + uint64(block)
	}
	id := m.firstPending + order*uint64(len(m.p.Streams)+1) + uint64(index)
	for _, s := range h.streams {
		if s.ID() == id {
			return m.blocks[block].RecordStream(m.taken(s))
		}
	}
	stream, err := m.dev.NewStreamWithID(id)
	if err != nil {
		return err
	}
	release, err := stream.Hold()
	if err != nil {
		return err
	}
	m.held[block] = pendingFree{streams: append(h.streams, stream), releases: append(h.releases, release)}
	return m.blocks[block].RecordStream(m.taken(stream))
}

// complete ends the work that holds up the free of a hand-out.
func (m *machine) complete(block int32) {
	h, ok := m.held[block]
	if !ok {
		return
	}
	delete(m.held, block)
	for i, s := range h.streams {
		h.releases[i]()
		_ = s.Close()
	}
}

// finish ends that work, but keeps the streams open: a deferred free will record an event there,
// which is then complete.
func (h pendingFree) finish() {
	for _, release := range h.releases {
		release()
	}
}

// call makes the call of a step of a recording with calls.
func (m *machine) call(s *recording.Step) error {
	e := &m.p.Entries[s.Entry]
	switch {
	case e.Action != recording.RecordStream:
		if s.Edge && e.Action != recording.PoolRelease {
			if err := m.add(); err != nil {
				return err
			}
		}
		return m.pools.call(s, e)
	case m.blocks[s.Block].IsZero():
		return nil // its allocation failed in this replay
	}
	return m.use(s.Block, s.Stream)
}

// setOptions applies the options of an entry. The limit stays.
func (m *machine) setOptions(e *recording.Entry) error {
	m.work(5 * (m.spans + m.p.MostLive)) // blocks are counted again
	config, known := m.options[int(e.Addr)]
	if !known {
		var err error
		if config, err = memcache.ParseConfig(m.p.Options[e.Addr]); err != nil {
			return err
		}
		m.options[int(e.Addr)] = config
	}
	now := m.cache.Config()
	config.PerProcessMemoryFraction, config.MemoryLimit, config.MaxCachedBytes = now.PerProcessMemoryFraction, now.MemoryLimit, now.MaxCachedBytes
	return m.cache.SetConfig(context.Background(), config)
}
