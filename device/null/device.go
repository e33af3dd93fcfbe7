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
	opened   *opened.Ledger // nil if open resources are not recorded

	// mu guards the fields below, and the queues of the streams. It is not held while a script
	// runs.
	mu        sync.Mutex
	changed   chan struct{} // closed when an operation completes; nil without waiters
	used      int64         // bytes in use, of capacity
	next      device.Ptr    // next address, for memory that the script does not place
	memory    table
	host      table                // registered memory
	forgotten bool                 // Close has dropped memory and host
	streams   map[*Stream]struct{} // streams with queued operations
	waits     int                  // number of operations queued by Wait
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

// Name returns "null".
func (d *Device) Name() string { return "null" }

// ID returns a number that is unique among the devices of this process.
func (d *Device) ID() uint64 { return d.id }

// Properties returns the device's properties; TotalMemory is its capacity.
func (d *Device) Properties() device.Properties {
	return device.Properties{Backend: "null", Model: "null (addresses without memory)", TotalMemory: d.capacity,
		Alignment: alignment}
}

// usable returns the error of calls on a closed device, or nil.
func (d *Device) usable(op string) error {
	if d.closed.Load() {
		return self.Closed(op)
	}
	return nil
}

// refuse returns err, the error of a failed look-up. If the device has been closed since the call
// began, it returns that error instead, because the close explains the failure.
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

// busy returns the streams with queued operations.
func (d *Device) busy() []*Stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]*Stream, 0, len(d.streams))
	for s := range d.streams {
		list = append(list, s)
	}
	return list
}

// Close waits for all streams and callbacks, closes the streams, and drops all memory. If memory
// was still allocated, mapped, reserved or pinned, it returns an error that lists it. Closing again
// returns nil.
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

// wait waits until done returns true. It calls done with mu held, at first and whenever an
// operation completes.
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

// notify wakes all waiters. The caller holds mu.
func (d *Device) notify() {
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

// String returns the device's name, ID and capacity.
func (d *Device) String() string { return fmt.Sprintf("null device %d of %d bytes", d.id, d.capacity) }
