package host

import (
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

type opKind uint8

const (
	opCopy opKind = iota
	opCopy2D
	opMemset
	opLaunch
	opRecord
	opWait
	opDone
	opReplay
)

// op is one queued operation. Its address carries the edge from the call that queues it to its
// start.
type op struct {
	next   atomic.Pointer[op] // in the queue, or in a list for reuse
	kind   opKind
	value  byte          // of a Memset
	ended  bool          // the kernel returned or panicked
	kernel func()        // of a launch
	name   string        // of a launch
	fault  *device.Error // raised instead of running
	rest                 // fields of the other kinds
	uses   uses          // of a copy: source and destination in turn

	captured captured // last, because few operations need it
}

// captured holds the fields for captures and graphs.
type captured struct {
	mark     *mark    // of a captured record or wait
	progress progress // of a queued lane
}

// rest holds the fields that a launch does not need.
type rest struct {
	rows  *rows       // of Copy2D, whose uses are its spans
	rec   *record     // recorded or waited for
	event *event      // whose last record rec becomes
	fn    func(error) // of OnDone
}

// newOp returns a new operation or a returned one, so a queue owns only as many as were ever queued
// at a time. In race builds each is new, because a reused address would add edges.
//
//go:norace
func (q *queue) newOp(k opKind) *op {
	var o *op
	if !race.Enabled {
		q.mu.Lock()
		if q.spare == nil {
			q.spare = q.returned.Swap(nil)
		}
		if o = q.spare; o != nil {
			q.spare = o.next.Load()
			o.next.Store(nil)
		}
		q.mu.Unlock()
	}
	if o == nil {
		o = new(op)
	}
	o.kind = k
	return o
}

// clear drops the operation's references. The operation may still be in the queue, as predecessor
// of the next one. Fields that are clear already are not written, because the operation moves
// between the caches of two processors.
//
//go:norace
func (o *op) clear() {
	o.kernel, o.name, o.fault, o.ended = nil, "", nil, false
	if o.kind != opLaunch {
		o.rest = rest{}
	}
	for u := &o.uses; u != nil && u.n > 0; u = u.more {
		for i := 0; i < u.n; i++ {
			u.item[i] = use{}
		}
		u.n = 0
	}
	o.uses.last = nil
	if o.kind == opReplay {
		o.captured = captured{}
	}
	if o.uses.more != nil {
		// Keep one for reuse: apart from batches, few operations name more ranges.
		o.uses.more.more = nil
	}
}

// giveBack returns a cleared operation for reuse.
//
//go:norace
func (q *queue) giveBack(o *op) {
	if race.Enabled {
		return
	}
	for {
		first := q.returned.Load()
		o.next.Store(first)
		if q.returned.CompareAndSwap(first, o) {
			return
		}
	}
}
