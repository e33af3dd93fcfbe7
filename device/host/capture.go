package host

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// capture holds the operations captured on one stream and on those that join it, in one lane each.
// None of them runs during the capture.
//
// Its lock is hidden from the race detector, so that it does not order goroutines that capture
// together. An operation's address carries the edge from the goroutine that queued it to each of
// its runs, as in a queue.
type capture struct {
	mu      sync.Mutex
	origin  *stream
	lanes   []*lane // the first n
	n       int
	records int // number of marks of records
	told    notices
	ended   bool
}

// lane holds the captured operations of one stream, in order.
type lane struct {
	stream      *stream
	index       int
	first, last *op
	work        int // number of operations that are not records or waits
	// For each lane, how much of its work precedes the next operation of this lane.
	clock []int
}

// membership is a stream's membership in a capture.
type membership struct {
	of   atomic.Pointer[capture] // nil: in none; closing: may not join one any more
	lane *lane                   // the stream's lane; guarded by the capture's lock
}

// closing replaces the capture of a stream that is being closed or is closed.
var closing = new(capture)

// close excludes the stream from future captures. It returns false if the stream is in one.
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

// mark is a captured record of an event, or a CaptureMark, which is not a record.
type mark struct {
	capture *capture
	index   int   // the record's number in the capture
	clock   []int // the lane's clock at the mark
}

// program is the result of a capture. It does not change. The last graph that uses it releases it.
type program struct {
	lanes   []*lane
	records int
	work    int
	told    *notice // called for each replay, in order
	graphs  int     // number of graphs that use it; guarded by the table's lock
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

// begin captures s. It returns false if s is captured already.
//
//go:norace
func (c *capture) begin(s *stream) bool {
	c.lock()
	c.origin = s
	ok := c.addLane(s)
	c.unlock()
	return ok
}

// addLane adds a lane for s. It returns false if s is captured already. The caller holds the lock.
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

// capture returns the capture that the stream is in, or nil.
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

// newOp makes an operation for the stream's queue or, if the stream is captured, for its lane.
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

// add appends o to the lane of s, which joins if it is not captured. It returns false if the
// capture has ended or s can't join.
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

// now returns a copy of the lane's clock for n lanes, with the lane's own work.
//
//go:norace
func (l *lane) now(n int) []int {
	clock := merged(make([]int, n), l.clock)
	clock[l.index] = l.work
	return clock
}

// clockOf returns a copy of the clock of s's lane, or nil if s has no lane or the capture has
// ended.
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

// merged sets each entry of a to the maximum of a and b, and returns a.
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

// end ends the capture; ok is false if it had ended before. If the origin has not waited for all
// work, unjoined is the first lane with missing work, and left the amount.
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

// retain adds a graph to the count of p. It returns false if the last graph has released p already.
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

// release subtracts a graph from the count of p. The last one releases the memory.
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

// differs describes the first difference in structure between p and q, or returns "".
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

// index returns the number of the record that the operation makes or waits for, or -1.
//
//go:norace
func (o *op) index() int {
	if o.captured.mark == nil {
		return -1
	}
	return o.captured.mark.index
}
