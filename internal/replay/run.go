package replay

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// outcome counts the differences between a replay and its recording.
type outcome struct {
	addresses, calls, stats, blocks int
	first                           string // text of the first difference
	// the entry of the call with the first difference; the number of entries if it is at the end
	departed int
	// the step at which a replay stopped; the number of steps if it did not
	stopped int
	entry   int // of the current call
	elapsed time.Duration
}

// mismatches returns the sum of all counts.
func (o *outcome) mismatches() int { return o.addresses + o.calls + o.stats + o.blocks }

// countDeparture adds n differences to a count, and keeps the text of the very first one.
func (o *outcome) countDeparture(n int, count *int, format string, args ...any) {
	if n > 0 && o.first == "" {
		o.first, o.departed = fmt.Sprintf(format, args...), o.entry
	}
	*count += n
}

// run is one replay of a program, with a reading of each call.
type run struct {
	*machine
	outcome
	config      memcache.Config
	limit       int64 // memory limit in bytes; 0: none
	assumptions assumptions
	// given ones first, others are added during the replay
	choices []choice
	next    int     // index of the next choice
	ahead   reading // reading of the step before
	// frees that are pending in the recording
	pending int64
	// a hand-out that the next call's flush waits for; -1: none
	late int32
	// stop at the first difference
	stop bool
	// calls of empty_cache before a request that have no other explanation
	sure int
	// those that may be a retry of the request under a limit
	unclear int
	final   memcache.Stats
}

// play makes all calls.
func (r *run) play(emptied int) {
	start := time.Now()
	r.late = -1
	for range emptied {
		r.cost.step()
		if r.walk(0); r.err != nil {
			return
		}
		r.begin(nil, false)
		r.compare(0, r.pools.emptyCache(0))
	}
	for i := range r.p.Steps {
		r.entry = int(max(r.p.Steps[i].Entry, r.p.Steps[i].To))
		r.cost.step()
		if r.playStep(i); r.err != nil {
			return
		}
		if r.stop && r.mismatches() > 0 {
			r.stopped = i
			return
		}
	}
	r.elapsed = time.Since(start)
	r.stopped, r.entry = len(r.p.Steps), len(r.p.Entries)
}

// playStep makes the call of step i according to its reading, and compares the result.
func (r *run) playStep(i int) {
	s := &r.p.Steps[i]
	how := r.read(i)
	switch s.Kind {
	case recording.StepFree:
		r.begin(nil, false)
		if how.late {
			r.late = s.Block
			r.pending++
		} else if s.Later {
			r.pending++
		}
		r.compare(i, r.release(s, s.Later || how.late))
	case recording.StepEmpty:
		if shapeOf(r.p.Inside(s)).releases {
			r.sure++
		}
		r.flush(i, r.p.Inside(s))
	case recording.StepCall:
		r.begin(nil, false)
		r.compare(i, r.call(s))
	case recording.StepReset:
		r.reset(r.p.Entries[s.Entry].Action)
	case recording.StepLimit:
		r.begin(nil, false)
		r.compare(i, r.cache.SetMemoryLimit(r.p.Entries[s.Entry].Size))
	case recording.StepOptions:
		r.begin(nil, false)
		r.compare(i, r.setOptions(&r.p.Entries[s.Entry]))
	case recording.StepOther: // at the end
		r.settle(i, r.p.Inside(s))
	default:
		inside := r.p.Inside(s)
		r.closeStreams(i, inside)
		if how.empty {
			r.countEmptied(s, inside)
			cut := shapeOf(inside).cut
			r.flush(i, inside[:cut])
			inside = inside[cut:]
		}
		if len(inside) > 0 || r.late >= 0 {
			r.completions(i, inside, how)
		}
		r.pools.release(s.Pool, inside)
		r.begin(inside, how.full)
		r.request(i, s)
		if len(inside) > 0 || len(r.got) > 0 {
			r.comparePending(i)
		}
	}
}

// countEmptied counts an empty_cache that was read before a request. It is certain if the request
// cannot have flushed, because the cache could have served it, it called no driver, or it is of a
// private pool.
func (r *run) countEmptied(s *recording.Step, inside []recording.Entry) {
	sh := shapeOf(inside)
	r.work(blockWork * 2 * r.p.MostLive)
	free := make(map[device.Ptr]bool)
	for _, e := range inside[:sh.lead] {
		free[e.Addr] = true
	}
	if s.Kind == recording.StepAlloc && !sh.grows || s.Pool != 0 || r.finds(r.cache.Snapshot().Segments, s, free) {
		r.sure++
	} else {
		r.unclear++
	}
}

// read returns the reading of step i.
func (r *run) read(i int) reading {
	if r.p.Own {
		return reading{full: refused(r.p.Inside(&r.p.Steps[i]))}
	}
	if i > 0 && r.assumptions.paired(r.p, i-1) {
		return r.ahead
	}
	r.ahead = r.choose(i)
	return r.ahead
}

// choose returns the chosen reading of step i, or the first plausible one.
func (r *run) choose(i int) reading {
	if r.next == len(r.choices) {
		list := r.assumptions.readings(r.p, i)
		if list == nil {
			return reading{}
		}
		r.choices = append(r.choices, choice{step: i, readings: r.plausible(i, list)})
	}
	c := &r.choices[r.next]
	if c.step != i {
		return reading{}
	}
	r.next++
	return c.reading()
}

// completions completes the frees that the call's poll saw, and counts all that the call has.
func (r *run) completions(step int, inside []recording.Entry, how reading) {
	polled := shapeOf(inside).lead
	if how.waited {
		polled = 0
	}
	for _, e := range inside {
		if e.Action == recording.FreeCompleted {
			r.pending--
		}
	}
	if r.late < 0 {
		r.completeInOrder(inside[:polled])
	}
	if r.late >= 0 {
		r.pending--
		r.late = -1
	}
	// A request polls the frees of its own stream. More can complete when it misses, or in a
	// PollFrees before it.
	if !r.config.Exact && polled > 0 && !slices.ContainsFunc(inside, func(e recording.Entry) bool { return e.Action == recording.Miss }) {
		r.compare(step, r.cache.PollFrees())
	}
}

// completeInOrder completes the frees at a call's beginning. Deferred frees are taken up first:
// those before the first other free are complete by then, and later ones complete when their events
// are queried.
func (r *run) completeInOrder(list []recording.Entry) {
	asked := false
	for _, e := range list {
		if h := r.held[e.Block]; asked && h.deferred == r.pools.takenUp {
			h.finish()
		} else {
			asked = asked || h.deferred != r.pools.takenUp
			r.complete(e.Block)
		}
	}
}

// flush repeats an empty_cache or trim_to that contains the entries.
func (r *run) flush(i int, entries []recording.Entry) {
	for _, e := range entries {
		if e.Action == recording.FreeCompleted {
			r.pending--
		}
	}
	if r.late >= 0 {
		r.pending--
		r.late = -1
	}
	n := 0
	for n < len(entries) && entries[n].Action == recording.FreeCompleted && r.held[entries[n].Block].deferred == r.pools.takenUp {
		n++
	}
	r.completeInOrder(entries[:n])
	r.begin(entries, false)
	r.compare(i, r.empty(&r.p.Steps[i], entries))
	r.comparePending(i)
}

// settle makes the cache see the frees that completed after the last call. Close of a cache waits
// for them, and a refused request polls.
func (r *run) settle(i int, entries []recording.Entry) {
	r.begin(nil, false)
	completed := r.pending
	for _, e := range entries {
		if e.Action == recording.FreeCompleted {
			r.pending--
		}
	}
	if r.pending == completed {
		return
	}
	r.completeAll(entries)
	r.compare(i, r.cache.PollFrees())
	r.comparePending(i)
}

// request makes an allocation, and compares its address.
func (r *run) request(i int, s *recording.Step) {
	e := &r.p.Entries[s.Entry]
	c, before := r.choiceOf(i), int64(0)
	if c != nil {
		before = r.cacheStats().NumAllocRetries
	}
	b, err := r.allocate(s)
	if c != nil {
		c.retries = r.cacheStats().NumAllocRetries - before
	}
	oom := errors.Is(err, memcache.ErrOutOfMemory)
	switch {
	case err != nil && !oom:
		r.countDeparture(1, &r.addresses, "entry %d: %v: %v", s.Entry, e, err)
	case oom != (s.Kind == recording.StepOOM):
		r.countDeparture(1, &r.addresses, "entry %d: %v: out of memory is %t here", s.Entry, e, oom)
	case b.Ptr() != e.Addr:
		r.countDeparture(1, &r.addresses, "entry %d: %v: the address is %#x here", s.Entry, e, b.Ptr())
	}
	r.compare(i, nil)
	if err == nil && s.Kind == recording.StepOOM {
		_ = b.Free() // no step frees it
	}
}

// choiceOf returns the choice for the request of step i, or nil.
func (r *run) choiceOf(i int) *choice {
	if r.next == 0 {
		return nil
	}
	if c := &r.choices[r.next-1]; c.step == i || c.step == i-1 && r.assumptions.paired(r.p, i-1) {
		return c
	}
	return nil
}

// cacheStats returns the cache's statistics.
func (r *run) cacheStats() memcache.Stats {
	r.sums()
	return r.cache.Stats()
}

// entryOf returns the entry of step i, or 0 if the recording has no steps.
func (r *run) entryOf(i int) int32 {
	if i >= len(r.p.Steps) {
		return 0
	}
	return r.p.Steps[i].Entry
}

// compare compares the driver calls of the last call with the recorded ones.
func (r *run) compare(i int, err error) {
	entry := r.entryOf(i)
	if err != nil {
		r.countDeparture(1, &r.calls, "entry %d: %v", entry, err)
	}
	for k := range max(len(r.got), len(r.expect)) {
		switch {
		case k >= len(r.got):
			r.countDeparture(1, &r.calls, "entry %d: %v is missing here", entry, r.expect[k])
		case k >= len(r.expect):
			r.countDeparture(1, &r.calls, "entry %d: %v is not in the recording", entry, r.got[k])
		case r.got[k].Action != r.expect[k].Action || r.got[k].Addr != r.expect[k].Addr || r.got[k].Size != r.expect[k].Size:
			r.countDeparture(1, &r.calls, "entry %d: %v is %v here", entry, r.expect[k], r.got[k])
		}
	}
}

// comparePending compares the number of frees that are pending.
func (r *run) comparePending(i int) {
	s := r.cacheStats()
	if n := s.Active.All.Current - s.Allocation.All.Current; n != r.pending {
		r.countDeparture(1, &r.calls, "entry %d: %d frees are pending here, and %d in the recording", r.entryOf(i), n, r.pending)
	}
}
