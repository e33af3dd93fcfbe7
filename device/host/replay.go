package host

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// replays queues a graph's program. A replay is one operation for each lane: the first lane runs on
// the stream of the Replay, the others on the graph's own streams, its branches. The lanes of a
// replay are ordered only by the replay's own records, one for each captured record. So the race
// detector sees the same edges as in the capture: from the call that queued an operation, from its
// stream, and from the events that were waited for.
//
// mu keeps the lanes of two replays in the same order on all branches. It is hidden from the race
// detector.
type replays struct {
	mu       sync.Mutex
	program  *program
	branches []*stream
	last     *run
	on       *stream // the last run's stream
	closed   bool
}

// run is one replay.
type run struct {
	before    *record     // for the first lane: the end of a previous replay on another stream
	records   []record    // by the indices of the marks
	end       record      // complete when everything is done
	abandoned atomic.Bool // a lane could not be queued, so no lane does anything
}

// progress is the state of a queued lane.
type progress struct {
	run  *run
	lane *lane
	at   *op // the next operation
}

//go:norace
func (g *replays) lock() {
	race.Disable()
	g.mu.Lock()
	race.Enable()
}

//go:norace
func (g *replays) unlock() {
	race.Disable()
	g.mu.Unlock()
	race.Enable()
}

// queue queues a replay on s. open reports whether the graph is open, and queued whether the
// streams were. If both hold it returns the functions to notify.
//
// The branches get their lanes first. Each begins with a wait for the first lane, so nothing has
// run if a stream turns out to be closed.
//
//go:norace
func (g *replays) queue(s *stream) (told *notice, open, queued bool) {
	g.lock()
	if g.closed {
		g.unlock()
		return nil, false, false
	}
	r := &run{records: make([]record, g.program.records)}
	if s.dev.dry {
		r.end.late = s.dev
	}
	if g.last != nil && g.on != s {
		r.before = &g.last.end
	}
	lanes := g.program.lanes
	queued = true
	for i := len(lanes) - 1; i >= 0 && queued; i-- {
		on := s
		if i > 0 {
			on = g.branches[i-1]
		}
		o := on.queue.newOp(opReplay)
		o.captured.progress = progress{run: r, lane: lanes[i]}
		if queued = on.push("Replay", o) == nil; !queued {
			r.abandon(lanes[:i+1])
		}
	}
	if queued {
		g.last, g.on = r, s
		told = g.program.told
	}
	g.unlock()
	return told, true, queued
}

// abandon ends a run whose given lanes were not queued.
//
//go:norace
func (r *run) abandon(lanes []*lane) {
	race.Disable()
	r.abandoned.Store(true)
	race.Enable()
	for _, l := range lanes {
		r.finish(l, l.first)
	}
}

// finish completes the records of a lane from one operation on, and after the first lane the run.
//
//go:norace
func (r *run) finish(l *lane, from *op) {
	for o := from; o != nil; o = o.next.Load() {
		if o.kind == opRecord {
			r.record(o).release()
			r.record(o).complete(0)
		}
	}
	if l.index == 0 {
		r.end.release()
		r.end.complete(0)
	}
}

//go:norace
func (r *run) record(o *op) *record { return &r.records[o.captured.mark.index] }

// replay runs a lane on the stream's worker.
//
//go:norace
func (p *progress) replay(s *stream, o *op) {
	if before := p.run.before; before != nil && p.lane.index == 0 {
		s.await(before)
		p.run.before = nil // it would keep all earlier replays alive
	}
	for p.at = p.lane.first; p.at != nil; {
		c := p.at
		p.at = c.next.Load() // before the step, because a kernel may end the goroutine
		p.run.step(s, o, c)
	}
}

// step runs the captured operation c for o, the lane's operation.
//
//go:norace
func (r *run) step(s *stream, o, c *op) {
	if c.kind == opRecord {
		r.record(c).release()
		r.record(c).complete(time.Since(s.dev.start))
		return
	}
	race.Disable()
	abandoned := r.abandoned.Load()
	race.Enable()
	if abandoned || s.dev.stuck() != nil {
		return
	}
	if c.kind == opWait {
		s.await(r.record(c))
		return
	}
	race.Acquire(unsafe.Pointer(c))
	o.perform(s, c)
	c.uses.release()
}

// swap replaces the program by next, if the two have the same structure, after the pending replays.
// It returns the program that the graph does not use then, and the first difference.
//
//go:norace
func (g *replays) swap(next *program) (open bool, differs string, rest *program) {
	for {
		g.lock()
		last := g.last
		if g.closed {
			g.unlock()
			return false, "", next
		}
		if last == nil || last.end.query() {
			break
		}
		g.unlock()
		last.end.wait(nil)
	}
	rest = next
	if differs = g.program.differs(next); differs == "" {
		rest, g.program = g.program, next
	}
	g.unlock()
	return true, differs, rest
}

// work returns the number of operations.
//
//go:norace
func (g *replays) work() int {
	g.lock()
	n := g.program.work
	g.unlock()
	return n
}

// close waits for the pending replays and ends the branches. The first close returns the program.
//
//go:norace
func (g *replays) close() *program {
	g.lock()
	p := g.program
	if g.closed {
		p = nil
	}
	g.closed = true
	last := g.last
	g.unlock()
	if last != nil {
		last.end.wait(nil)
	}
	for _, b := range g.branches {
		// The device's sticky error is not the graph's.
		_ = b.Close()
	}
	return p
}

// share returns the present program, retained for the caller, or nil if the graph is closed.
//
//go:norace
func (g *replays) share(t *table) *program {
	g.lock()
	p := g.program
	if g.closed || !t.retain(p) {
		p = nil
	}
	g.unlock()
	return p
}
