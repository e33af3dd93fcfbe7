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

	// mu guards the fields below and the order of the counters. It is taken before a cache's locks.
	mu         sync.Mutex
	allocated  int64
	byCategory [categories]int64
	live       map[uint64]memcache.Category // by serial: the category in which a block was counted
	active     int64                        // as last written, like the next
	reserved   int64
	names      *counterNames // nil: nothing was written yet
}

// counterNames are the lane and the names of a cache's counters.
type counterNames struct {
	at                                      lane
	allocated, byCategory, active, reserved string
}

// Memory returns the observer of one cache. The cache must have it from its start, because it
// counts the allocated bytes.
func (t *Timeline) Memory() *Memory {
	return &Memory{timeline: t, live: make(map[uint64]memcache.Category), active: -1, reserved: -1}
}

// Watch adds the counters of the active and reserved bytes of the cache that m observes. They are
// read from the cache at each allocation and free while the timeline is on. A nil cache ends this.
func (m *Memory) Watch(cache *memcache.Cache) { m.cache.Store(cache) }

// Start observes every allocation and free and, while the timeline is on, the cache's other
// operations.
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
		return ctx, nil // its OpAlloc reports the failure
	}
	return ctx, &operation{m, m.timeline.now()}
}

// changed is an operation that only changes counters. It is the observer itself, as counted is.
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

// counts reports whether an operation changes the counters.
func counts(op memcache.Op) bool {
	return op == memcache.OpAlloc || op == memcache.OpFree || op == memcache.OpRelabel
}

// counted is an operation that is not written. It is the observer itself, so that it needs no
// memory.
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

// count counts an allocation, a free or a block's new label, and reports whether a counter changed.
// m.mu is held.
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
	case !ok: // freed before
		return false
	// It is subtracted from the category in which it was counted, because a new label may not have
	// been reported yet.
	case info.Op == memcache.OpFree && info.Seq != 0:
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

// write writes the changed counters. m.mu is held.
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
	// The cache may be ahead of its observer, so its pending blocks are added to the bytes counted
	// here.
	if active := m.allocated + st.ActiveBytes.All.Current - st.AllocatedBytes.All.Current; active != m.active {
		m.active = active
		t.file.add(event{phase: "C", at: at, name: m.names.active, from: now, args: []arg{number("bytes", active)}})
	}
	if reserved := st.ReservedBytes.All.Current; reserved != m.reserved {
		m.reserved = reserved
		t.file.add(event{phase: "C", at: at, name: m.names.reserved, from: now, args: []arg{number("bytes", reserved)}})
	}
}

// String returns the allocated bytes.
func (m *Memory) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("timeline's memory: %d bytes allocated", m.allocated)
}
