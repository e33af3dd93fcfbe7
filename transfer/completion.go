package transfer

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// completion is a point in a stream: the end of one piece of work. A [Copy] has one, and so have
// the buffers that the work uses, which may outlive the Copy or be outlived by it. Its event is
// closed as soon as anybody has seen it complete and nobody is using it; from then on the answer is
// a field, and asking costs no driver call. Events are not kept for the next copy: package device
// promises that making and closing one is cheap, and backends where it is not keep them.
//
// No lock guards it: refs counts who uses the event, and the last of them closes it, so that a
// goroutine that waits holds up none that only asks.
//
// In race builds every holder of a completion asks the event itself, because each of them needs the
// edge from the stream; the event is closed when the garbage collector finds the completion.
type completion struct {
	stream uint64
	seq    uint64 // of the pool: grows along a stream
	event  device.Event
	refs   atomic.Int32 // goroutines that use event, and 1 until it is complete
	ended  atomic.Bool
	err    error // valid when refs is 0
}

// record records ev, which is new, on s. If that fails ev is closed.
func (p *Pool) record(s device.Stream, ev device.Event) (*completion, error) {
	c := &completion{stream: s.ID(), seq: p.recorded.Add(1), event: ev}
	c.refs.Store(1)
	if err := s.Record(ev); err != nil {
		ev.Close()
		return nil, err
	}
	// Nobody closes it sooner: each holder may still ask.
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

// finish notes that the event is complete, whoever sees it first. The error is kept: of an event
// that is closed nobody can ask.
func (c *completion) finish(err error) {
	if !race.Enabled && c.ended.CompareAndSwap(false, true) {
		c.err = err
		c.unref()
	}
}

// done reports whether the copy is done, and orders it before what follows. A device that failed
// counts as done, with its error. Any other error of a query says nothing about the copy.
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

// peek is done for bookkeeping: it orders nothing, so that a goroutine that looks after the buffers of
// others does not hide the event that its own work lacks.
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

// quietWait is wait for bookkeeping: like peek it orders nothing.
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
