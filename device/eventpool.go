package device

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
)

// EventPool keeps the events of one owner for reuse. It also saves the small handle that
// [Device.NewEvent] allocates each time. Device and Options must be set before the first use and
// not changed after it. A pool is safe for concurrent use.
//
// Backends can't reuse handles: if a handle were issued again, a former owner that still used it
// after Close would touch the next owner's event. This pool relies on an owner that keeps its
// events to itself.
//
// In race builds the pool keeps nothing: its lock, and the reuse of another goroutine's event,
// would order goroutines that are otherwise unordered, and hide the event that they lack.
type EventPool struct {
	Device  Device
	Options EventOptions

	mu     sync.Mutex // guards the fields below; it is not held during driver calls
	free   []Event
	closed bool
}

// Get returns an event that is not in use. Until the caller records it, the event may be complete
// or not, because its last record may be a former user's.
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

// Put returns an event of Get to the pool; the caller must not use it any more. After Close it
// closes the event.
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

// Close closes the events in the pool. Events that are in use are closed by Put. It is idempotent.
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
