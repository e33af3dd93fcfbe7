package transfer

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// mark is a point in a stream: the end of one copy. Its event goes back to the pool of events as soon as
// anybody has seen it complete and nobody is using it.
//
// In race builds every holder of a mark asks the event itself, because each of them needs the edge from the
// stream; the event is reused when the garbage collector finds the mark.
type mark struct {
	stream uint64
	seq    uint64 // grows along a stream
	event  device.Event
	events *events
	refs   atomic.Int32 // goroutines that use event, and 1 until it is complete
	ended  atomic.Bool
	err    error // valid when refs is 0
}

// events are the events of a pool that no mark holds.
type events struct {
	dev    device.Device
	timed  bool
	seq    atomic.Uint64
	mu     sync.Mutex
	free   []device.Event
	closed bool
}

// record records ev on s. If that fails, ev goes back.
func (e *events) record(s device.Stream, ev device.Event) (*mark, error) {
	m := &mark{stream: s.ID(), seq: e.seq.Add(1), event: ev, events: e}
	m.refs.Store(1)
	if err := s.Record(ev); err != nil {
		e.put(ev)
		return nil, err
	}
	if race.Enabled {
		runtime.AddCleanup(m, e.put, ev)
	}
	return m, nil
}

func (e *events) get() (device.Event, error) {
	e.mu.Lock()
	if n := len(e.free); n > 0 {
		ev := e.free[n-1]
		e.free = e.free[:n-1]
		e.mu.Unlock()
		return ev, nil
	}
	e.mu.Unlock()
	return e.dev.NewEvent(device.EventOptions{Timed: e.timed})
}

func (e *events) put(ev device.Event) {
	e.mu.Lock()
	if !e.closed {
		e.free = append(e.free, ev)
		ev = nil
	}
	e.mu.Unlock()
	if ev != nil {
		ev.Close()
	}
}

func (e *events) close() {
	e.mu.Lock()
	free := e.free
	e.free, e.closed = nil, true
	e.mu.Unlock()
	for _, ev := range free {
		ev.Close()
	}
}

// hold keeps the event from being reused. It returns false if it is complete already.
func (m *mark) hold() bool {
	if race.Enabled {
		return true
	}
	for {
		n := m.refs.Load()
		if n == 0 {
			return false
		}
		if m.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (m *mark) drop() {
	if !race.Enabled && m.refs.Add(-1) == 0 {
		m.events.put(m.event)
	}
}

// end notes that the event is complete.
func (m *mark) end(err error) {
	if !race.Enabled && m.ended.CompareAndSwap(false, true) {
		m.err = err
		m.drop()
	}
}

// done reports whether the copy is done, and orders it before what follows. A device that failed counts as
// done, with its error.
func (m *mark) done() (bool, error) {
	if !m.hold() {
		return true, m.err
	}
	defer m.drop()
	ok, err := m.event.Query()
	if ok || err != nil {
		m.end(err)
		return true, err
	}
	return false, nil
}

// peek is done for bookkeeping: it orders nothing, so that a goroutine that looks after the buffers of
// others does not hide the event that its own work lacks.
func (m *mark) peek() (bool, error) {
	race.Disable()
	defer race.Enable()
	return m.done()
}

// wait waits until the copy is done.
func (m *mark) wait(ctx context.Context) error {
	if !m.hold() {
		return m.err
	}
	defer m.drop()
	err := m.event.Synchronize(ctx)
	if err == nil {
		m.end(nil)
		return nil
	}
	if ctx.Err() == nil {
		m.end(err)
	}
	return err
}

// quietWait is wait for bookkeeping: like peek it orders nothing.
func (m *mark) quietWait(ctx context.Context) error {
	_, err := race.Quietly(func() (struct{}, error) { return struct{}{}, m.wait(ctx) })
	return err
}

// before makes s wait for the copy.
func (m *mark) before(s device.Stream) error {
	if s.ID() == m.stream || !m.hold() {
		return nil
	}
	defer m.drop()
	return s.Wait(m.event)
}
