package host

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
	"github.com/cistern-ml/cistern/internal/race"
)

// alignment is the alignment in bytes of addresses that Alloc returns.
const alignment = 512

// Device is a host device. Besides [device.Device] it implements [device.HostVisible],
// [device.VirtualMemory], [device.BusyTimer] and [device.Collectives]. Its streams implement
// [device.BatchCopier], [device.GraphCapturer] and [device.CaptureOrder].
type Device struct {
	id    uint64
	start time.Time // time zero of the device's clock
	// The device that streams, graphs and communicators return as theirs: this device or, for a dry
	// device, its wrapper.
	front device.Device
	dry   bool
	behind

	mem       table
	callbacks callbacks

	sticky atomic.Pointer[device.Error]
	fault  faultCounters
	closed atomic.Bool

	closing sync.Mutex
	streams streams

	communicators backend.Open[*communicator]
	opened        *opened.Ledger // nil if open resources are not recorded
}

var (
	_ device.Device        = (*Device)(nil)
	_ device.HostVisible   = (*Device)(nil)
	_ device.VirtualMemory = (*Device)(nil)
	_ device.BusyTimer     = (*Device)(nil)
	_ device.BatchCopier   = (*stream)(nil)
)

// New makes a host device.
func New(cfg Config) (*Device, error) {
	capacity, err := cfg.capacity()
	if err != nil {
		return nil, err
	}
	apart, err := cfg.apart()
	if err != nil {
		return nil, err
	}
	d := &Device{id: device.NewID(), start: time.Now()}
	d.front = d
	d.mem.apart = apart
	ram := min(ramBytes(), maxPiece)
	d.mem.init(capacity, max(ram, capacity))
	if ram > 0 {
		d.mem.piece = ram
	}
	d.callbacks.init(d)
	d.opened = opened.New("host device", d.id)
	d.mem.opened = d.opened
	return d, nil
}

// Name returns "host".
func (d *Device) Name() string { return "host" }

// ID returns a number that is unique among the devices of this process.
func (d *Device) ID() uint64 { return d.id }

// Properties returns the device's properties; TotalMemory is its capacity.
func (d *Device) Properties() device.Properties {
	return device.Properties{
		Backend:     "host",
		Model:       fmt.Sprintf("Go heap (%s/%s, %d CPUs)", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()),
		TotalMemory: d.mem.capacity,
		Alignment:   alignment,
		Accessible:  d.mem.apart == 0,
	}
}

// open returns the error of calls on a closed device, or nil.
func (d *Device) open(op string) error {
	race.Disable()
	closed := d.closed.Load()
	race.Enable()
	if closed {
		return self.Closed(op)
	}
	return nil
}

// usable returns the error of calls on a device that is closed or has a sticky error, or nil.
func (d *Device) usable(op string) error {
	if err := d.open(op); err != nil {
		return err
	}
	return d.stuckError()
}

// refuse returns err, the error of a failed look-up in the table. If the device has been closed
// since the call began, it returns that error instead, because the close explains the failure.
func (d *Device) refuse(op string, err error) error {
	if closed := d.open(op); closed != nil {
		return closed
	}
	return err
}

// Synchronize waits until everything queued before the call on every stream is done. Cancelling ctx
// ends the waiting.
func (d *Device) Synchronize(ctx context.Context) error {
	if err := d.open("Synchronize"); err != nil {
		return err
	}
	if ctx == nil {
		return self.NoContext("Synchronize")
	}
	streams := d.streams.list(false)
	for _, s := range streams {
		if s.Capturing() {
			return self.DeviceCapturing("Synchronize", s.id)
		}
	}
	for _, s := range streams {
		if err := s.synchronize(ctx); err != nil {
			return err
		}
	}
	return d.stuckError()
}

// Close waits for all streams and for the callbacks of OnDone, closes the streams, and frees all
// memory. It returns the device's sticky error or, without one, an error that lists what was still
// allocated, pinned or reserved. Closing again returns nil.
func (d *Device) Close() error {
	race.Disable()
	d.closing.Lock()
	again := d.closed.Swap(true)
	race.Enable()
	var err error
	if !again {
		err = d.close()
	}
	race.Disable()
	d.closing.Unlock()
	race.Enable()
	return err
}

func (d *Device) close() error {
	d.catchUp()
	for _, s := range d.streams.list(true) {
		s.queue.close()
	}
	for _, c := range d.communicators.End() {
		c.part()
	}
	d.callbacks.close()
	left := d.mem.close()
	d.mem.share()
	stuck := d.stuckError()
	d.opened.Close(stuck != nil)
	if stuck != nil {
		return stuck
	}
	return self.Left(&left)
}

// String returns the device's name and ID, with its free and total memory.
func (d *Device) String() string {
	return fmt.Sprintf("host device %d: %d of %d bytes free", d.id, d.mem.available(), d.mem.capacity)
}
