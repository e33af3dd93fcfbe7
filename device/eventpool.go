package device

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
)

// EventPool keeps the events of one owner for reuse, where not even the small handle may be allocated that
// [Device.NewEvent] makes each time. An owner has Device and Options set before the first use, and does not change
// them. It is safe for concurrent use.
//
// Backends can't do this: a handle that is handed out again would let whoever kept it after Close touch the event's
// next owner. An owner that keeps its events to itself knows that nobody does.
//
// In race builds nothing is kept: the lock, and the event that another goroutine had, would order goroutines that
// nothing else does, and hide the event that they lack.
type EventPool struct {
	Device  Device
	Options EventOptions

	mu     sync.Mutex // guards what follows; no driver call is made with it held
	free   []Event
	closed bool
}

// Get returns an event that nobody uses. Until it is recorded it may be complete or not: its last record may have been
// another's.
func (p *EventPool) Get() (Event, error) {
	if !race.Enabled {
		p.mu.Lock()
		if n := len(p.free) - 1; n >= 0 {
			e := p.free[n]
			p.free[n] = nil
			p.free = p.free[:n]
			p.mu.Unlock()
			return e, nil
		}
		p.mu.Unlock()
	}
	if p.Device == nil {
		return nil, fmt.Errorf("device: Get of an EventPool: %w: it has no device", ErrInvalid)
	}
	return p.Device.NewEvent(p.Options)
}

// Put takes back an event of Get, which the caller uses no more. After Close it closes the event.
func (p *EventPool) Put(e Event) error {
	if e == nil {
		return fmt.Errorf("device: Put into an EventPool: %w: the event is nil", ErrInvalid)
	}
	if race.Enabled {
		return e.Close()
	}
	p.mu.Lock()
	if !p.closed {
		p.free = append(p.free, e)
		e = nil
	}
	p.mu.Unlock()
	if e != nil {
		return e.Close()
	}
	return nil
}

// Close closes the events that the pool has. Those that are out are closed by Put. It is idempotent.
func (p *EventPool) Close() error {
	p.mu.Lock()
	free := p.free
	p.free, p.closed = nil, true
	p.mu.Unlock()
	var errs []error
	for _, e := range free {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}
