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

// op is one queued operation. Its address carries the edge from the call that queues it to its start.
type op struct {
	next   atomic.Pointer[op] // in the queue, or among those for reuse
	kind   opKind
	value  byte          // of memset
	ended  bool          // the kernel returned or panicked
	kernel func()        // of a launch
	name   string        // of a launch
	fault  *device.Error // raised instead of running
	rest                 // of the other kinds
	uses   uses          // copies: source and destination in turn

	captured captured // behind what every operation needs
}

// captured is what captures and graphs need.
type captured struct {
	mark     *mark    // of a captured record or wait
	progress progress // of a lane in the queue
}

// rest is what a launch has not.
type rest struct {
	rows  *rows       // of Copy2D, whose uses are its spans
	rec   *record     // recorded or waited for
	event *event      // whose last record rec becomes
	fn    func(error) // of OnDone
}

// newOp makes an operation, or takes one that was given back: a queue has as many as were ever queued at a time. In race
// builds each is new: a reused address would have edges.
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

// clear lets go of what the operation refers to. It may be in the queue still, for the next one.
// What is clear already is not written: the operation goes to and fro between two processors'
// caches.
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
		o.uses.more.more = nil // one stays for reuse: few operations but batches name more
	}
}

// giveBack keeps an operation that was cleared for reuse.
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
