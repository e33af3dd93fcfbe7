package transfer

import (
	"sync"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// notifier ends the operations of an observer when their copies are done, on a goroutine of its own.
//
// The device's completion goroutine knows, to the race detector, everything that its streams did. If it
// called the observer, the observer's locks would pass that knowledge on to whoever takes them next, and an
// event that the program lacks would never be reported. So the completion goroutine only hands over a
// record, in a region that the detector does not see; the goroutine here has edges from those that queued
// the copies, and from no device.
type notifier struct {
	mu    sync.Mutex
	wake  sync.Cond
	head  *record // done, the last one first
	ended bool
	open  sync.WaitGroup // records that are followed
	exit  chan struct{}
}

// record is one operation whose copy is queued.
type record struct {
	n     *notifier
	op    Operation
	event Event
	next  *record
}

func newNotifier() *notifier {
	n := &notifier{exit: make(chan struct{})}
	n.wake.L = &n.mu
	go n.run()
	return n
}

// follow ends op when everything queued on s is done.
func (n *notifier) follow(s device.Stream, op Operation, e Event) {
	r := &record{n: n, op: op, event: e}
	n.open.Add(1)
	race.ReleaseMerge(unsafe.Pointer(r))
	if err := s.OnDone(r.done); err != nil {
		r.event.Done, r.event.Err = time.Now(), err
		op.End(r.event)
		n.open.Done()
	}
}

// done runs on the device's completion goroutine.
//
//go:norace
func (r *record) done(err error) {
	if err != nil {
		race.ReleaseMerge(unsafe.Pointer(&r.event)) // the device is dead, and err is its
	}
	race.Disable()
	r.event.Done, r.event.Err = time.Now(), err
	n := r.n
	n.mu.Lock()
	r.next, n.head = n.head, r
	n.wake.Signal()
	n.mu.Unlock()
	race.Enable()
}

// run is the notifier's goroutine.
func (n *notifier) run() {
	defer close(n.exit)
	for {
		list, ended := n.next()
		for r := list; r != nil; {
			r = r.end()
		}
		if list == nil && ended {
			return
		}
	}
}

// next waits for records, and returns them in the order in which they were done.
//
//go:norace
func (n *notifier) next() (list *record, ended bool) {
	race.Disable()
	n.mu.Lock()
	for n.head == nil && !n.ended {
		n.wake.Wait()
	}
	for r := n.head; r != nil; {
		next := r.next
		r.next, list = list, r
		r = next
	}
	n.head, ended = nil, n.ended
	n.mu.Unlock()
	race.Enable()
	return list, ended
}

// end tells the observer, and returns the next record.
//
//go:norace
func (r *record) end() *record {
	race.Acquire(unsafe.Pointer(r))
	if r.event.Err != nil {
		race.Acquire(unsafe.Pointer(&r.event))
	}
	next := r.next
	r.op.End(r.event)
	r.n.open.Done()
	return next
}

// close waits until every operation was ended, and ends the goroutine.
//
//go:norace
func (n *notifier) close() {
	n.open.Wait()
	race.Disable()
	n.mu.Lock()
	n.ended = true
	n.wake.Signal()
	n.mu.Unlock()
	race.Enable()
	<-n.exit
}
