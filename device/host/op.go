package host

import (
	"sync"

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
)

// op is one queued operation. Its address carries the edge from the call that queues it to its start.
type op struct {
	kind   opKind
	value  byte          // of memset
	uses   uses          // copies: source and destination in turn
	rows   *rows         // of Copy2D, whose uses are its spans
	kernel func()        // of a launch
	name   string        // of a launch
	rec    *record       // recorded or waited for
	event  *event        // whose last record rec becomes
	fn     func(error)   // of OnDone
	fault  *device.Error // raised instead of running
	ended  bool          // the kernel returned or panicked
	waiter *record       // completed when the operation is done, for Synchronize
	next   *op
}

// ops keeps operations for reuse. In race builds each is new: sync.Pool has edges of its own, and so would
// a reused address.
var ops = sync.Pool{New: func() any { return new(op) }}

func newOp(k opKind) *op {
	if race.Enabled {
		return &op{kind: k}
	}
	o := ops.Get().(*op)
	o.kind = k
	return o
}

func (o *op) recycle() {
	if !race.Enabled {
		*o = op{}
		ops.Put(o)
	}
}
