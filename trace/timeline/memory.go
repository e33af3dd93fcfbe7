package timeline

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/memcache"
)

const categories = memcache.CategoryWorkspace + 1

// Memory is the observer of one cache, for [memcache.Config].
type Memory struct {
	timeline *Timeline
	cache    atomic.Pointer[memcache.Cache] // nil: not watched

	mu         sync.Mutex // guards what follows, and the order of the counters; taken before a cache's locks
	allocated  int64
	byCategory [categories]int64
	live       map[uint64]memcache.Category // by serial: what a block was counted as
	active     int64                        // as last written, as is the next
	reserved   int64
	names      *counterNames // nil: nothing was written
}

// counterNames are where a cache's counters stand, and what they are called.
type counterNames struct {
	at                                      lane
	allocated, byCategory, active, reserved string
}

// Memory returns an observer, which must be a cache's from the start: it counts what is allocated.
func (t *Timeline) Memory() *Memory {
	return &Memory{timeline: t, live: make(map[uint64]memcache.Category), active: -1, reserved: -1}
}

// Watch adds the counters of what is active and reserved, which are read from the cache, the one that m observes, at each allocation and free
// while the timeline is on. nil ends it.
func (m *Memory) Watch(cache *memcache.Cache) { m.cache.Store(cache) }

// Start sees every allocation and free, and while the timeline is on what else a cache does.
func (m *Memory) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	if m.timeline.off.Load() {
		if !counts(op) {
			return ctx, nil
		}
		return ctx, (*counted)(m)
	}
	switch op {
	case memcache.OpFree, memcache.OpRelabel:
		return ctx, (*changed)(m)
	case memcache.OpAllocFailed:
		return ctx, nil // its OpAlloc says so
	}
	return ctx, &operation{m, m.timeline.now()}
}

// changed is an operation of which only the counters are written: the observer itself, as counted.
type changed Memory

func (c *changed) End(info memcache.OpInfo) { (*Memory)(c).tell(&info) }

// tell counts an operation, and writes the counters if they changed.
func (m *Memory) tell(info *memcache.OpInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.count(info) {
		m.write(info.Device)
	}
}

// counts reports whether an operation changes what is counted.
func counts(op memcache.Op) bool {
	return op == memcache.OpAlloc || op == memcache.OpFree || op == memcache.OpRelabel
}

// counted is an operation that is not written: the observer itself, so that nothing is made for it.
type counted Memory

func (c *counted) End(info memcache.OpInfo) {
	m := (*Memory)(c)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count(&info)
}

type operation struct {
	memory *Memory
	from   time.Duration
}

func (o *operation) End(info memcache.OpInfo) {
	m, t := o.memory, o.memory.timeline
	if info.Op == memcache.OpAlloc {
		m.tell(&info)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	switch {
	case info.Op != memcache.OpAlloc:
		args := []arg{text("device", info.Device)}
		if info.Bytes > 0 {
			args = append(args, number("bytes", info.Bytes))
		}
		s := span{name: info.Op.String(), kind: "allocator", from: o.from, to: now, args: args}
		if info.Err != nil {
			s.name += " (failed)"
			s.args = append(s.args, text("error", info.Err.Error()))
		}
		t.span(program, "allocator", s)
	case info.Err == nil:
		t.layers.see(t, info.Label, o.from, now)
	default:
		at := t.lanes.of(program, "allocator").fixed(0)
		t.file.add(event{phase: "i", at: at, name: "alloc (failed)", kind: "allocator", from: now,
			args: labelled(info.Label, number("requested", info.Requested), text("error", info.Err.Error()))})
	}
}

// count counts an allocation, a free or a block's new label, and reports whether something changed. m.mu is held.
func (m *Memory) count(info *memcache.OpInfo) bool {
	to := info.Label.Category
	if to >= categories {
		to = memcache.CategoryOther
	}
	if info.Op == memcache.OpAlloc {
		if info.Err != nil || info.Serial == 0 {
			return false
		}
		m.live[info.Serial] = to
		m.allocated += info.Bytes
		m.byCategory[to] += info.Bytes
		return true
	}
	was, ok := m.live[info.Serial]
	switch {
	case !ok: // it was freed before
		return false
	case info.Op == memcache.OpFree && info.Seq != 0: // with the label that it was counted with: a new one may not have been told yet
		delete(m.live, info.Serial)
		m.allocated -= info.Bytes
		m.byCategory[was] -= info.Bytes
		return true
	case info.Op == memcache.OpRelabel && info.Err == nil:
		m.live[info.Serial] = to
		m.byCategory[was] -= info.Bytes
		m.byCategory[to] += info.Bytes
		return to != was
	}
	return false
}

// write writes the counters that changed. m.mu is held.
func (m *Memory) write(device string) {
	t := m.timeline
	if m.names == nil {
		t.mu.Lock()
		at, suffix := t.lanes.counters(device)
		t.mu.Unlock()
		m.names = &counterNames{at, "memory allocated" + suffix, "memory by category" + suffix, "memory active" + suffix, "memory reserved" + suffix}
	}
	at, now := m.names.at, t.now()
	t.file.add(event{phase: "C", at: at, name: m.names.allocated, from: now, args: []arg{number("bytes", m.allocated)}})
	args := make([]arg, 0, categories)
	for c, bytes := range m.byCategory {
		args = append(args, number(memcache.Category(c).String(), bytes))
	}
	t.file.add(event{phase: "C", at: at, name: m.names.byCategory, from: now, args: args})
	cache := m.cache.Load()
	if cache == nil {
		return
	}
	st := cache.Stats()
	// The cache may be ahead of what was told: its blocks that wait for a stream go on top of what is counted here.
	if active := m.allocated + st.ActiveBytes.All.Current - st.AllocatedBytes.All.Current; active != m.active {
		m.active = active
		t.file.add(event{phase: "C", at: at, name: m.names.active, from: now, args: []arg{number("bytes", active)}})
	}
	if reserved := st.ReservedBytes.All.Current; reserved != m.reserved {
		m.reserved = reserved
		t.file.add(event{phase: "C", at: at, name: m.names.reserved, from: now, args: []arg{number("bytes", reserved)}})
	}
}

// String has the bytes that are allocated.
func (m *Memory) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("timeline's memory: %d bytes allocated", m.allocated)
}
