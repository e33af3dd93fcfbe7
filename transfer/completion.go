package transfer

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// completion is a point in a stream: the end of one piece of work. A [Copy] refers to it, and so do
// the buffers that the work uses; each of them may outlive the others. Its event is closed as soon
// as some goroutine has found it complete and none is using it. From then on the result is a field,
// and reading it costs no driver call. The pool does not reuse events: package device promises that
// making and closing one is cheap, and backends where it is not keep them.
//
// It has no lock: refs counts the uses of the event, and the last one closes it, so that a
// goroutine that waits never delays one that only queries.
//
// In race builds every holder of a completion queries the event itself, because each of them needs
// the edge from the stream. The event is closed when the garbage collector frees the completion.
type completion struct {
	stream uint64
	seq    uint64 // numbers the pool's completions, grows along a stream
	event  device.Event
	refs   atomic.Int32 // goroutines that use event, and 1 until it is complete
	ended  atomic.Bool
	err    error // valid when refs is 0
}

// record records ev, a new event, on s. If that fails it closes ev.
func (p *Pool) record(s device.Stream, ev device.Event) (*completion, error) {
	c := &completion{stream: s.ID(), seq: p.recorded.Add(1), event: ev}
	c.refs.Store(1)
	if err := s.Record(ev); err != nil {
		ev.Close()
		return nil, err
	}
	// It is not closed earlier, because each holder may still query it.
	if race.Enabled {
		runtime.AddCleanup(c, func(ev device.Event) { ev.Close() }, ev)
	}
	return c, nil
}

// ref keeps the event from being closed. It returns false if it is complete already.
func (c *completion) ref() bool {
	if race.Enabled {
		return true
	}
	for {
		n := c.refs.Load()
		if n == 0 {
			return false
		}
		if c.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// unref ends a use of the event. The last one closes it.
func (c *completion) unref() {
	if !race.Enabled && c.refs.Add(-1) == 0 {
		c.event.Close()
	}
}

// finish marks the event as complete; the first call counts. It keeps the error because a closed
// event can't be queried.
func (c *completion) finish(err error) {
	if !race.Enabled && c.ended.CompareAndSwap(false, true) {
		c.err = err
		c.unref()
	}
}

// done reports whether the copy is done, and orders it before the caller's later accesses. On a
// device that failed it returns true and the device's error. After any other error of the query the
// copy's state is unknown.
func (c *completion) done() (bool, error) {
	if !c.ref() {
		return true, c.err
	}
	defer c.unref()
	ok, err := c.event.Query()
	if ok || errors.Is(err, device.ErrSticky) {
		c.finish(err)
		return true, err
	}
	return false, err
}

// peek is done for bookkeeping: it orders nothing, so that a goroutine that polls buffers of other
// goroutines does not hide an event that its own work lacks.
func (c *completion) peek() (bool, error) {
	race.Disable()
	defer race.Enable()
	return c.done()
}

// wait waits until the copy is done.
func (c *completion) wait(ctx context.Context) error {
	if !c.ref() {
		return c.err
	}
	defer c.unref()
	err := c.event.Synchronize(ctx)
	if err == nil {
		c.finish(nil)
		return nil
	}
	if errors.Is(err, device.ErrSticky) {
		c.finish(err)
	}
	return err
}

// quietWait is wait for bookkeeping. Like peek, it orders nothing.
func (c *completion) quietWait(ctx context.Context) error {
	_, err := race.Quietly(func() (struct{}, error) { return struct{}{}, c.wait(ctx) })
	return err
}

// orderBefore makes s wait for the copy.
func (c *completion) orderBefore(s device.Stream) error {
	if s.ID() == c.stream || !c.ref() {
		return nil
	}
	defer c.unref()
	return s.Wait(c.event)
}
