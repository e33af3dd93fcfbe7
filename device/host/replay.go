package host

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// replays queues a graph's program. A replay is one operation for each lane: of the first lane on the stream that it is for, of the
// others on streams of the graph's own, its branches. The lanes of a replay are ordered by its own records alone, one for each that was
// captured. So the race detector sees of each operation what it saw at first: the call that queued it, its stream, and the
// events that were waited for.
//
// mu keeps the lanes of two replays in the same order on all branches; it is hidden.
type replays struct {
	mu       sync.Mutex
	program  *program
	branches []*stream
	last     *run
	on       *stream // of the last
	closed   bool
}

// run is one replay.
type run struct {
	before    *record     // of the replay before, if that was on another stream; the first lane's
	records   []record    // by the indices of the marks
	end       record      // everything is done
	abandoned atomic.Bool // a lane could not be queued: none does anything
}

// progress is of a queued lane.
type progress struct {
	run  *run
	lane *lane
	at   *op // what comes next
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

// queue queues a replay on s. It reports whether the graph is open, and whether the streams were, and returns who is to be told then.
//
// The branches get their lanes first: they begin with a wait for the first one, so that nothing has run if a stream is closed.
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

// abandon ends a run of which these lanes were not queued.
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

// finish completes the records of a lane from one operation on, and the end of the run, if that is the first lane's.
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

// replay runs a lane, on the stream's worker.
//
//go:norace
func (p *progress) replay(s *stream, o *op) {
	if before := p.run.before; before != nil && p.lane.index == 0 {
		s.await(before)
		p.run.before = nil // which has one before it, and so on
	}
	for p.at = p.lane.first; p.at != nil; {
		c := p.at
		p.at = c.next.Load() // a kernel may end the goroutine
		p.run.step(s, o, c)
	}
}

// step runs one captured operation for o, which is that of the lane.
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

// swap puts next in the place of the program, if it is made alike, once what was queued is done. It returns the one of them that is
// not the graph's then, and how they differ.
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

// work is the number of operations.
//
//go:norace
func (g *replays) work() int {
	g.lock()
	n := g.program.work
	g.unlock()
	return n
}

// close waits for what was queued, and ends the branches. It returns the program if it was the first.
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
		_ = b.Close() // the device's sticky error is not the graph's
	}
	return p
}

// share returns what the graph runs now, retained for the caller, or nil if the graph is closed.
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
