package transfer

import (
	"sync"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// notifier ends an observer's operations when their copies are done, on a goroutine of its own.
// Only a pool with an observer has one, so that other pools pay nothing. It costs two more events
// and a driver callback for each observed copy.
//
// To the race detector, the device's completion goroutine is ordered after everything that its
// streams did. If it called the observer, the observer's locks would order their next holders after
// that too, and an event that the program lacks would never be reported. So the completion
// goroutine only queues a record, in a region that the detector does not see. The notifier's
// goroutine has edges from the goroutines that queued the copies, but none from a device.
type notifier struct {
	mu    sync.Mutex
	wake  sync.Cond
	head  *observed // done operations, the last one first
	ended bool
	open  sync.WaitGroup // pending operations
	exit  chan struct{}
}

// observed is one operation that an observer follows. The methods of a nil observed do nothing.
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

// started records the device's time before the work on s. If that fails the work still runs, but it
// is not measured.
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

// measure fills in the work's time on the device. It orders nothing.
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
		race.ReleaseMerge(unsafe.Pointer(&o.info)) // err is the failed device's
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

// next waits for records and returns them in the order of their completion.
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

// end reports the operation to the observer and returns the next record.
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

// close waits until every operation has ended, then stops the goroutine.
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
