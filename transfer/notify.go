package transfer

import (
	"sync"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// notifier ends the operations of an observer when their copies are done, on a goroutine of its
// own. There is one for a pool with an observer and none for others, so that whoever observes
// nothing pays nothing. It costs two more events and a callback of the driver for each copy that
// the observer wants to know about.
//
// The device's completion goroutine knows, to the race detector, everything that its streams did.
// If it called the observer, the observer's locks would pass that knowledge on to whoever takes
// them next, and an event that the program lacks would never be reported. So the completion
// goroutine only hands over a record, in a region that the detector does not see; the goroutine
// here has edges from those that queued the copies, and from no device.
type notifier struct {
	mu    sync.Mutex
	wake  sync.Cond
	head  *observed // done, the last one first
	ended bool
	open  sync.WaitGroup // operations that are followed
	exit  chan struct{}
}

// observed is one operation that an observer wants to know about. A nil one does nothing.
type observed struct {
	pool     *Pool
	op       Operation
	info     OpInfo
	from, to device.Event // timed; nil: none
	next     *observed
}

// fail ends an operation that was not queued.
func (o *observed) fail(err error) {
	if o != nil {
		o.info.Done, o.info.Err = time.Now(), err
		o.closeEvents()
		o.op.End(o.info)
	}
}

// started records the device's time before the work on s. Without it the work is done all the same,
// and not measured.
func (o *observed) started(s device.Stream) {
	if o == nil {
		return
	}
	var err error
	if o.from, err = o.pool.dev.NewEvent(device.EventOptions{Timed: true}); err == nil {
		o.to, err = o.pool.dev.NewEvent(device.EventOptions{Timed: true})
	}
	if err == nil {
		err = s.Record(o.from)
	}
	if err != nil {
		o.closeEvents()
	}
}

// ended records the device's time after the work on s.
func (o *observed) ended(s device.Stream) {
	if o != nil && o.to != nil && s.Record(o.to) != nil {
		o.closeEvents()
	}
}

// measure fills in what the work took. It orders nothing.
func (o *observed) measure() {
	if dev, from, to := o.pool.dev, o.from, o.to; o.info.Err == nil && to != nil {
		o.info.Busy, _ = race.Quietly(func() (time.Duration, error) { return dev.Elapsed(from, to) })
	}
	o.closeEvents()
}

func (o *observed) closeEvents() {
	for _, e := range [...]device.Event{o.from, o.to} {
		if e != nil {
			e.Close()
		}
	}
	o.from, o.to = nil, nil
}

func newNotifier() *notifier {
	n := &notifier{exit: make(chan struct{})}
	n.wake.L = &n.mu
	go n.run()
	return n
}

// follow ends o when everything queued on s is done.
func (n *notifier) follow(s device.Stream, o *observed) {
	n.open.Add(1)
	race.ReleaseMerge(unsafe.Pointer(o))
	if err := s.OnDone(o.done); err != nil {
		o.fail(err)
		n.open.Done()
	}
}

// done runs on the device's completion goroutine.
//
//go:norace
func (o *observed) done(err error) {
	if err != nil {
		race.ReleaseMerge(unsafe.Pointer(&o.info)) // the device is dead, and err is its
	}
	race.Disable()
	o.info.Done, o.info.Err = time.Now(), err
	n := o.pool.notifier
	n.mu.Lock()
	o.next, n.head = n.head, o
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
func (n *notifier) next() (list *observed, ended bool) {
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
func (o *observed) end() *observed {
	race.Acquire(unsafe.Pointer(o))
	if o.info.Err != nil {
		race.Acquire(unsafe.Pointer(&o.info))
	}
	next := o.next
	o.measure()
	o.op.End(o.info)
	o.pool.notifier.open.Done()
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
