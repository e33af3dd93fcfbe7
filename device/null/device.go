package null

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
)

// Device is a null device. Besides [device.Device] it implements [device.VirtualMemory].
type Device struct {
	id       uint64
	capacity int64
	start    time.Time
	closed   atomic.Bool
	ended    atomic.Bool // Close has waited for everything
	script   atomic.Pointer[Script]
	closing  sync.Mutex     // held by Close
	opened   *opened.Ledger // nil: not recorded

	// mu guards what follows, and the queues of the streams. No script runs with it held.
	mu        sync.Mutex
	changed   chan struct{} // closed when anything has become complete; nil when nobody waits
	used      int64         // of capacity
	next      device.Ptr    // where the device puts what the script doesn't place
	memory    table
	host      table                // registered memory
	forgotten bool                 // memory and host are empty for good, after Close
	streams   map[*Stream]struct{} // those that something is queued on
	waits     int                  // operations queued by Wait
	callbacks callbacks
}

var (
	_ device.Device        = (*Device)(nil)
	_ device.VirtualMemory = (*Device)(nil)
	_ device.Stream        = (*Stream)(nil)
)

// New makes a null device.
func New(cfg Config) (*Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Device{id: device.NewID(), capacity: cfg.Capacity, next: cfg.Base, start: time.Now(),
		streams: make(map[*Stream]struct{})}
	d.opened = opened.New("null device", d.id)
	d.SetScript(Script{})
	return d, nil
}

// Name is "null".
func (d *Device) Name() string { return "null" }

// ID is unique among the devices of this process.
func (d *Device) ID() uint64 { return d.id }

// Properties has the device's capacity as TotalMemory.
func (d *Device) Properties() device.Properties {
	return device.Properties{Backend: "null", Model: "null (addresses without memory)", TotalMemory: d.capacity,
		Alignment: alignment}
}

// usable is the error of every call on a closed device.
func (d *Device) usable(op string) error {
	if d.closed.Load() {
		return self.Closed(op)
	}
	return nil
}

// refuse returns err, which says that the device does not have something, or that it is closed: then that is why, for a
// call that began before.
func (d *Device) refuse(op string, err error) error {
	if closed := d.usable(op); closed != nil {
		return closed
	}
	return err
}

func (d *Device) outOfMemory(op string, bytes, free int64) error {
	return self.OutOfMemory(op, bytes, free, d.capacity)
}

// Synchronize waits until everything queued before the call on every stream is done.
func (d *Device) Synchronize(ctx context.Context) error {
	if err := d.usable("Synchronize"); err != nil {
		return err
	}
	if ctx == nil {
		return self.NoContext("Synchronize")
	}
	for _, s := range d.busy() {
		if err := s.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// busy lists the streams that something is queued on.
func (d *Device) busy() []*Stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]*Stream, 0, len(d.streams))
	for s := range d.streams {
		list = append(list, s)
	}
	return list
}

// Close waits for all streams and callbacks, closes the streams, and forgets all memory. It returns an error that
// says what was still allocated, mapped, reserved or pinned. Closing again returns nil.
func (d *Device) Close() error {
	d.closing.Lock()
	defer d.closing.Unlock()
	if d.closed.Swap(true) {
		return nil
	}
	for _, s := range d.busy() {
		s.close()
	}
	d.ended.Store(true)
	d.callbacks.close(d)
	d.opened.Close(false)
	d.mu.Lock()
	defer d.mu.Unlock()
	var left backend.Leftover
	d.memory.left(&left)
	d.host.left(&left)
	d.forgetPortable(&left)
	d.memory, d.host, d.forgotten = table{}, table{}, true
	return self.Left(&left)
}

// wait returns when done says so, which is asked with mu held, now and whenever something has become complete.
func (d *Device) wait(ctx context.Context, done func() bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !done() {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("device: waiting on null: %w", err)
		}
		if d.changed == nil {
			d.changed = make(chan struct{})
		}
		changed := d.changed
		d.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		d.mu.Lock()
	}
	return nil
}

// notify wakes those who wait. mu is held.
func (d *Device) notify() {
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

// String is the device's name and ID, with its capacity.
func (d *Device) String() string { return fmt.Sprintf("null device %d of %d bytes", d.id, d.capacity) }
