package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// books is a model of a pool's statistics after calls of one goroutine, on any shards. The model
// has no shards, queues and quotas. It gets each Get and Release and the driver's calls.
type books struct {
	*randomCaller
	budget, perClass, limit int64

	idle      map[int64]int64 // number of idle slabs by size
	ages      []group         // the same, the least recently used first
	evicted   map[int64]int64 // slabs to be freed
	pending   []pendingSlab
	calls     []pinnedCall  // of the driver, not yet processed
	held      int64         // bytes, by the processed calls
	freed     time.Duration // the device's time after the last processed free
	st        transfer.Stats
	parked    bool // the driver refused to free something
	flushes   bool // since the last look: it is unknown which slabs were idle together
	evictions int
	loose     bool // the least recently used slab is unknown
}

// group holds the sizes of slabs that became idle at the same time.
type group []int64

// pendingSlab is the slab of a released buffer whose copies were not known to be done.
type pendingSlab struct {
	size    int64
	uses    []*simRecord
	tainted bool
}

func newBooks(a *randomCaller, cfg transfer.Config) *books {
	orDefault := func(n, normal int64) int64 {
		if n == 0 {
			return normal
		}
		return max(n, 0)
	}
	return &books{
		randomCaller: a, limit: cfg.MaxBytes, idle: map[int64]int64{}, evicted: map[int64]int64{},
		budget:   orDefault(cfg.MaxCachedBytes, transfer.DefaultMaxCachedBytes),
		perClass: orDefault(int64(cfg.MaxCachedBuffers), transfer.DefaultMaxCachedBuffers),
	}
}

func set(s *memcache.Stat, n int64) {
	s.Current += n
	s.Allocated += max(n, 0)
	s.Freed += max(-n, 0)
	s.Peak = max(s.Peak, s.Current)
}

// poll moves slabs whose copies are done.
func (m *books) poll() { m.pollUntil(math.MaxInt64, func(pendingSlab) bool { return true }) }

// pollUntil moves the wanted slabs whose copies were done at a time of the device.
func (m *books) pollUntil(now time.Duration, wanted func(pendingSlab) bool) {
	m.ages = append(m.ages, nil)
	kept := m.pending[:0]
	var last int64
	sizes, evictions := 0, m.evictions
	for _, s := range m.pending {
		if inFlightAt(s.uses, now) || !wanted(s) {
			kept = append(kept, s)
			continue
		}
		if s.size != last {
			last, sizes = s.size, sizes+1
		}
		m.reclaim(s)
	}
	if sizes > 1 && m.evictions > evictions { // the order in which they were found matters
		m.loose = true
	}
	clear(m.pending[len(kept):])
	m.pending = kept
	if n := len(m.ages) - 1; len(m.ages[n]) == 0 {
		m.ages = m.ages[:n]
	}
}

// overdue models the poll of a Get before it calls the driver: a free in an earlier call of the
// same step may have waited for copies that were not polled since. If one of several shards has the
// slab that the Get needs, it is unknown which shards were polled.
func (m *books) overdue(size int64) {
	m.w.sim.mu.Lock()
	began := m.w.sim.began
	m.w.sim.mu.Unlock()
	done, found := false, m.idle[size] > 0
	for _, s := range m.pending {
		if !inFlightAt(s.uses, began) {
			done, found = true, found || s.size == size
		}
	}
	switch {
	case m.loose || !done:
	case found && m.w.shards > 1:
		m.loose = true
	case m.idle[size] == 0:
		m.pollUntil(began, func(pendingSlab) bool { return true })
	}
}

// lookAgain models the second search of a Get that found nothing and has freed memory over the
// limits. The free may have waited for copies, and slabs that they used serve the Get if the cache
// may hold them. Other slabs stay until the next poll.
func (m *books) lookAgain(size int64) {
	done := func(s pendingSlab) bool { return !s.tainted && s.size <= m.budget && !inFlightAt(s.uses, m.freed) }
	found := slices.ContainsFunc(m.pending, func(s pendingSlab) bool { return s.size == size && done(s) && m.fits(s) })
	pending := len(m.pending)
	m.pollUntil(m.freed, m.fits)
	placed := pending - len(m.pending)
	// It is unknown which of several slabs became idle, and which of several shards were polled if
	// the Get found one.
	m.loose = m.loose || placed > 0 && slices.ContainsFunc(m.pending, done) || placed > 1 && found && m.w.shards > 1
}

// fits reports whether the cache may hold a slab without evicting others.
func (m *books) fits(s pendingSlab) bool {
	return !s.tainted && m.st.CachedBytes.Current+s.size <= m.budget && m.idle[s.size] < m.perClass
}

// reclaim makes an unused slab idle, or evicts it.
func (m *books) reclaim(s pendingSlab) {
	set(&m.st.ActiveBytes, -s.size)
	if m.loose {
		return
	}
	if s.tainted || s.size > m.budget || m.idle[s.size] == m.perClass {
		m.doom(s.size)
		return
	}
	for m.st.CachedBytes.Current+s.size > m.budget && !m.loose {
		m.evict()
	}
	set(&m.st.CachedBytes, s.size)
	m.idle[s.size]++
	n := len(m.ages) - 1
	m.ages[n] = append(m.ages[n], s.size)
}

// evict evicts the least recently used slab, if that is known.
func (m *books) evict() {
	oldest := m.ages[0]
	if len(oldest) == 0 || m.w.shards > 1 || slices.Min(oldest) != slices.Max(oldest) {
		m.loose = true
		return
	}
	m.evictions++
	m.unidle(oldest[0], 0)
	m.doom(oldest[0])
}

// unidle removes a slab of group i from the idle ones.
func (m *books) unidle(size int64, i int) {
	m.idle[size]--
	set(&m.st.CachedBytes, -size)
	k := slices.Index(m.ages[i], size)
	m.ages[i] = slices.Delete(slices.Clone(m.ages[i]), k, k+1)
	if len(m.ages[i]) == 0 && i < len(m.ages)-1 {
		m.ages = slices.Delete(m.ages, i, i+1)
	}
}

// newest returns the group of the slab of a size that became idle last.
func (m *books) newest(size int64) int {
	for i := len(m.ages) - 1; i > 0; i-- {
		if slices.Contains(m.ages[i], size) {
			return i
		}
	}
	return 0
}

func (m *books) doom(size int64) {
	m.evicted[size]++
	set(&m.st.Allocations, -1)
	set(&m.st.AllocatedBytes, -size)
}

// look processes the driver's calls since the last look.
func (m *books) look() {
	d := m.w.sim
	d.mu.Lock()
	m.calls = append(m.calls, d.log...)
	d.log = d.log[:0]
	d.mu.Unlock()
}

// frees takes the driver's next calls as long as they are frees of what must go.
func (m *books) frees() {
	if m.loose {
		m.calls = slices.DeleteFunc(m.calls, func(c pinnedCall) bool {
			if c.bytes > 0 || c.bytes%64 != 0 { // it goes with an allocation that gave too little
				return false
			}
			if m.parked = m.parked || c.failed; !c.failed {
				m.held += c.bytes
			}
			return true
		})
		return
	}
	for len(m.calls) > 0 && m.calls[0].bytes < 0 && m.evicted[-m.calls[0].bytes] > 0 {
		c := m.calls[0]
		m.calls = m.calls[1:]
		m.evicted[-c.bytes]--
		m.freed = c.at
		if m.parked = m.parked || c.failed; !c.failed {
			m.held += c.bytes
		}
	}
}

// get models a Get of n bytes that returned err. It returns the error that the Get must have, or
// nil.
func (m *books) get(n int64, err error) error {
	size := transfer.RoundSize(n)
	m.overdue(size)
	if !m.loose && m.idle[size] == 0 {
		m.frees()
		m.lookAgain(size)
	}
	switch {
	case m.loose:
		if err := m.looseGet(size, err); err != nil {
			return err
		}
	case m.idle[size] > 0:
		m.st.Hits++
		m.unidle(size, m.newest(size))
		m.frees()
	default:
		if err := m.miss(size); err != nil {
			return err
		}
	}
	set(&m.st.ActiveRequests, 1)
	set(&m.st.ActiveBytes, size)
	set(&m.st.RequestedBytes, n)
	return nil
}

// looseGet is get if it is unknown whether the Get finds a slab.
func (m *books) looseGet(size int64, err error) error {
	m.frees()
	asked := false
	for i := 0; i < len(m.calls); i++ {
		c := m.calls[i]
		if c.bytes != size {
			continue
		}
		m.calls = slices.Delete(m.calls, i, i+1)
		i--
		if !c.failed && !c.flawed {
			m.st.Misses++
			m.held += size
			return nil
		}
		asked = true
		if c.flawed {
			m.tooLittle(size)
			break
		}
	}
	if asked || m.limit > 0 && errors.Is(err, transfer.ErrLimit) {
		return err
	}
	m.st.Hits++
	return nil
}

// miss models a Get that needs the driver. If the driver has no memory, or the limit forbids it,
// all idle slabs are freed, and the driver is asked again.
func (m *books) miss(size int64) (err error) {
	for range 2 {
		m.frees()
		if m.limit > 0 && m.held+size > m.limit {
			err = transfer.ErrLimit
		} else {
			if len(m.calls) == 0 || m.calls[0].bytes != size {
				m.fail("a Get of %d bytes, of which none are idle, did not ask the driver", size)
			}
			call := m.calls[0]
			m.calls = m.calls[1:]
			switch {
			case call.flawed:
				m.tooLittle(size)
				return errSim
			case !call.failed:
				m.held += size
				m.st.Misses++
				set(&m.st.Allocations, 1)
				set(&m.st.AllocatedBytes, size)
				return nil
			case m.w.dead():
				return errSim
			}
			err = errSim
		}
		if m.flushed(); m.interrupted && len(m.pending) > 0 {
			return context.Canceled
		}
	}
	return err
}

// tooLittle processes the free of memory that was less than size bytes.
func (m *books) tooLittle(size int64) {
	if i := slices.IndexFunc(m.calls, func(c pinnedCall) bool { return c.bytes == 1-size }); i >= 0 {
		if m.calls[i].failed {
			m.held += size - 1
		}
		m.calls = slices.Delete(m.calls, i, i+1)
	}
}

// flushed models a flush, which has waited and frees everything that was cached.
func (m *books) flushed() {
	if m.loose {
		m.flushes = true
		m.poll()
		m.frees()
		return
	}
	m.flushes = m.flushes || len(m.pending) > 0
	m.poll()
	for size, n := range m.idle {
		for range n {
			m.unidle(size, m.newest(size))
			m.doom(size)
		}
	}
	m.frees()
	if n := len(m.pending); n > 0 && !m.interrupted {
		m.fail("%d buffers still wait", n)
	}
}

// release models the Release of a buffer of n bytes.
func (m *books) release(n int64, uses []*simRecord, tainted bool) {
	m.released(n, uses, tainted)
	if len(m.calls) > 0 && m.calls[0].bytes < 0 { // it has looked at everything
		m.poll()
	}
	m.frees()
}

// released is release before a poll.
func (m *books) released(n int64, uses []*simRecord, tainted bool) {
	size := transfer.RoundSize(n)
	set(&m.st.ActiveRequests, -1)
	set(&m.st.RequestedBytes, -n)
	s := pendingSlab{size, uses, tainted}
	if len(uses) > 0 {
		m.pending = append(m.pending, s)
	} else {
		m.ages = append(m.ages, nil)
		m.reclaim(s)
	}
}

// check compares the statistics, except times.
func (m *books) check() {
	if len(m.calls) > 0 {
		m.fail("the driver was called without need: %v", m.calls)
	}
	st := m.pool.Stats()
	m.w.calls.Add(1)
	m.poll()
	if st.HostAllocs != st.HostAllocTime.Count || st.HostFrees != st.HostFreeTime.Count {
		m.fail("%d and %d driver calls, %d and %d times", st.HostAllocs, st.HostFrees, st.HostAllocTime.Count, st.HostFreeTime.Count)
	}
	st.HostAllocTime, st.HostFreeTime = transfer.DurationStat{}, transfer.DurationStat{}
	d := m.w.sim
	m.st.HostAllocs, m.st.HostFrees = d.allocCalls, d.freeCalls
	m.st.HeldBytes.Current, m.st.HeldBytes.Peak = d.held, d.peak
	m.st.HeldBytes.Allocated, m.st.HeldBytes.Freed = d.given, d.given-d.held
	m.st.Pending = int64(len(m.pending))
	m.takeOver(&st)
	if st != m.st {
		m.fail("the statistics are wrong: %s", unequal(st, m.st))
	}
	m.w.invariants(m.randomCaller, st)
}

// unequal returns the names of statistics that differ.
func unequal(got, want transfer.Stats) (s string) {
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range g.NumField() {
		if !g.Field(i).Equal(w.Field(i)) {
			s += fmt.Sprintf("\n%s is %+v, and must be %+v", g.Type().Field(i).Name, g.Field(i), w.Field(i))
		}
	}
	return s
}

// takeOver copies statistics that the model can't predict, if they are plausible.
func (m *books) takeOver(st *transfer.Stats) {
	if m.flushes || m.loose {
		if st.CachedBytes.Current != m.st.CachedBytes.Current && !m.loose || st.CachedBytes.Peak > m.budget {
			m.fail("the statistics are wrong: %s", unequal(*st, m.st))
		}
		m.st.CachedBytes = st.CachedBytes
	}
	if m.loose {
		m.st.Allocations, m.st.AllocatedBytes = st.Allocations, st.AllocatedBytes
		m.st.ActiveBytes.Peak = min(m.st.ActiveBytes.Peak, st.ActiveBytes.Peak) // a Get may have waited
	}
	m.flushes = false
}

// resetPeaks models ResetPeakStats.
func (m *books) resetPeaks() {
	for _, s := range []*memcache.Stat{&m.st.Allocations, &m.st.AllocatedBytes, &m.st.ActiveRequests, &m.st.ActiveBytes,
		&m.st.RequestedBytes, &m.st.CachedBytes, &m.st.Registered} {
		s.Peak = s.Current
	}
	m.w.sim.mu.Lock()
	m.w.sim.peak = m.w.sim.held
	m.w.sim.mu.Unlock()
}
