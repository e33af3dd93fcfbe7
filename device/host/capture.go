package host

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// capture is what is captured of one stream and of those that join it, in a lane each. Nothing runs meanwhile.
//
// Its lock is hidden from the race detector: goroutines that capture together are not ordered by it. What an operation gets of the
// goroutine that queued it, its function above all, comes to each of its runs by the operation's address, as in a queue.
type capture struct {
	mu      sync.Mutex
	origin  *stream
	lanes   []*lane // the first n
	n       int
	records int // the marks that were made
	told    notices
	ended   bool
}

// lane are the captured operations of one stream, in order.
type lane struct {
	stream      *stream
	index       int
	first, last *op
	work        int   // of its operations, those that are no records and waits
	clock       []int // for each lane, how much of its work comes before what is captured here next
}

// membership is a stream's, of the capture that it is in.
type membership struct {
	of   atomic.Pointer[capture] // nil: none, and never one: closing
	lane *lane                   // in it; under its lock
}

// closing is in place of the capture of a stream that is being closed, or is closed.
var closing = new(capture)

// close keeps the stream out of captures to come. It reports false if it is in one.
//
//go:norace
func (m *membership) close() bool {
	race.Disable()
	ok := m.of.CompareAndSwap(nil, closing)
	race.Enable()
	return ok || m.closes()
}

// closes reports whether the stream is being closed, or is closed.
//
//go:norace
func (m *membership) closes() bool {
	race.Disable()
	c := m.of.Load()
	race.Enable()
	return c == closing
}

// mark is a captured record of an event, or a CaptureMark, which is no record.
type mark struct {
	capture *capture
	index   int   // among the records of the capture
	clock   []int // of the lane, at the time
}

// program is what a capture has become. It does not change, and is released by the last graph that has it.
type program struct {
	lanes   []*lane
	records int
	work    int
	told    *notice // of each replay, in order
	graphs  int     // under the lock of the table
}

//go:norace
func (c *capture) lock() {
	race.Disable()
	c.mu.Lock()
}

//go:norace
func (c *capture) unlock() {
	c.mu.Unlock()
	race.Enable()
}

// begin captures s. It reports whether it was not captured already.
//
//go:norace
func (c *capture) begin(s *stream) bool {
	c.lock()
	c.origin = s
	ok := c.addLane(s)
	c.unlock()
	return ok
}

// addLane makes a lane for s, unless it is captured. The caller holds the lock.
//
//go:norace
func (c *capture) addLane(s *stream) bool {
	if !s.member.of.CompareAndSwap(nil, c) {
		return false
	}
	if c.n == len(c.lanes) {
		grown := make([]*lane, 2*c.n+1)
		for i := range c.n {
			grown[i] = c.lanes[i]
		}
		c.lanes = grown
	}
	s.member.lane = &lane{stream: s, index: c.n}
	c.lanes[c.n] = s.member.lane
	c.n++
	return true
}

// capture is the capture that the stream is in, or nil.
//
//go:norace
func (m *membership) capture() *capture {
	race.Disable()
	c := m.of.Load()
	race.Enable()
	if c == closing {
		return nil
	}
	return c
}

// newOp makes an operation of the stream's queue or, while the stream is captured, of its lane.
//
//go:norace
func (m *membership) newOp(q *queue, k opKind) *op {
	if c := m.capture(); c != nil {
		return c.newOp(k)
	}
	return q.newOp(k)
}

//go:norace
func (c *capture) newOp(k opKind) *op {
	o := new(op)
	o.kind, o.uses.capture = k, c
	return o
}

// add adds o to what is captured of s, which joins if it is not captured. It reports whether the capture goes on.
//
//go:norace
func (c *capture) add(s *stream, o *op) bool {
	race.ReleaseMerge(unsafe.Pointer(o))
	c.lock()
	ok := !c.ended && (s.member.lane != nil && s.member.capture() == c || c.addLane(s))
	if ok {
		l := s.member.lane
		switch o.kind {
		case opRecord:
			o.captured.mark = &mark{capture: c, index: c.records, clock: l.now(c.n)}
			c.records++
			o.event.setCaptured(o.captured.mark)
		case opWait:
			l.clock = merged(l.now(c.n), o.captured.mark.clock)
		default:
			l.work++
		}
		if l.last == nil {
			l.first = o
		} else {
			l.last.next.Store(o)
		}
		l.last = o
	}
	c.unlock()
	return ok
}

// now is a copy of the lane's clock, of n lanes and with its own work.
//
//go:norace
func (l *lane) now(n int) []int {
	clock := merged(make([]int, n), l.clock)
	clock[l.index] = l.work
	return clock
}

// clockOf is a copy of the clock of a stream's lane; nil if it has none, or the capture has ended.
//
//go:norace
func (c *capture) clockOf(s *stream) (clock []int) {
	c.lock()
	if l := s.member.lane; l != nil && !c.ended && s.member.capture() == c {
		clock = l.now(c.n)
	}
	c.unlock()
	return clock
}

// merged is the later of both for each lane, in a.
//
//go:norace
func merged(a, b []int) []int {
	for i := 0; i < len(b); i++ {
		if b[i] > a[i] {
			a[i] = b[i]
		}
	}
	return a
}

// end ends the capture. It reports whether it had not ended before, and, if the origin has not waited for all work, of which lane
// it is, and how much.
//
//go:norace
func (c *capture) end() (p *program, unjoined *lane, left int, ok bool) {
	c.lock()
	if c.ended {
		c.unlock()
		return nil, nil, 0, false
	}
	c.ended = true
	p = &program{lanes: c.lanes[:c.n], records: c.records, told: c.told.first, graphs: 1}
	joined := c.lanes[0].now(c.n)
	for i := range c.n {
		l := c.lanes[i]
		p.work += l.work
		if joined[i] < l.work && unjoined == nil {
			unjoined, left = l, l.work-joined[i]
		}
		l.stream.member.lane = nil
		l.stream.member.of.Store(nil)
	}
	c.unlock()
	return p, unjoined, left, true
}

// retain counts one more graph that has p, unless there is none any more.
//
//go:norace
func (t *table) retain(p *program) bool {
	t.lock()
	ok := p.graphs > 0
	if ok {
		p.graphs++
	}
	t.unlock()
	return ok
}

// release counts one graph less, and lets go of the memory with the last one.
//
//go:norace
func (t *table) release(p *program) {
	t.lock()
	p.graphs--
	last := p.graphs == 0
	t.unlock()
	for i := 0; last && i < len(p.lanes); i++ {
		for o := p.lanes[i].first; o != nil; o = o.next.Load() {
			o.uses.drop()
		}
	}
}

// differs says how q is not made as p is; nothing if it is.
//
//go:norace
func (p *program) differs(q *program) string {
	if len(p.lanes) != len(q.lanes) {
		return fmt.Sprintf("the graph is of %d streams, the other one of %d", len(p.lanes), len(q.lanes))
	}
	for i := range p.lanes {
		n := 1
		for a, b := p.lanes[i].first, q.lanes[i].first; a != nil || b != nil; a, b = a.next.Load(), b.next.Load() {
			if a == nil || b == nil || a.kind != b.kind || a.index() != b.index() {
				return fmt.Sprintf("the graphs differ in operation %d of stream %d of the capture, events included", n, i+1)
			}
			n++
		}
	}
	return ""
}

// index is that of the record that is made or waited for; of other operations it is -1.
//
//go:norace
func (o *op) index() int {
	if o.captured.mark == nil {
		return -1
	}
	return o.captured.mark.index
}
