package failtest

import (
	"context"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/device/null"
)

// driver is what a device does that may fail.
type driver interface {
	device.Device
	device.VirtualMemory
}

// faulty is a device whose driver calls may fail, except closing.
type faulty struct {
	driver
	self   device.Device // that streams are of
	faults *Faults
}

// NewNull makes a null device whose driver calls fail as f says. Closing it, its streams and its
// events does not fail.
func NewNull(f *Faults, cfg null.Config) (device.Device, error) {
	d, err := null.New(cfg)
	w := &faulty{driver: d, faults: f}
	w.self = w
	return w, err
}

// hostDevice is a host device whose driver calls may fail.
type hostDevice struct {
	*faulty
	device.HostVisible
	device.Collectives
}

// NewHost is NewNull for a host device, which computes and copies. It captures no graphs.
func NewHost(f *Faults, cfg host.Config) (device.Device, error) {
	d, err := host.New(cfg)
	if err != nil {
		return nil, err
	}
	w := &hostDevice{&faulty{driver: d, faults: f}, d, d}
	w.self = w
	return w, nil
}

func (d *faulty) Alloc(bytes int64) (device.Ptr, error) {
	if err := d.faults.alloc("Alloc"); err != nil {
		return 0, err
	}
	return d.driver.Alloc(bytes)
}

func (d *faulty) Free(p device.Ptr) error {
	if err := d.faults.call("Free"); err != nil {
		return err
	}
	return d.driver.Free(p)
}

func (d *faulty) MemInfo() (free, total int64, err error) {
	if err := d.faults.call("MemInfo"); err != nil {
		return 0, 0, err
	}
	return d.driver.MemInfo()
}

func (d *faulty) AllocPinned(bytes int64) ([]byte, error) {
	if err := d.faults.alloc("AllocPinned"); err != nil {
		return nil, err
	}
	return d.driver.AllocPinned(bytes)
}

func (d *faulty) FreePinned(b []byte) error {
	if err := d.faults.call("FreePinned"); err != nil {
		return err
	}
	return d.driver.FreePinned(b)
}

func (d *faulty) Register(b []byte) error {
	if err := d.faults.call("Register"); err != nil {
		return err
	}
	return d.driver.Register(b)
}

func (d *faulty) Unregister(b []byte) error {
	if err := d.faults.call("Unregister"); err != nil {
		return err
	}
	return d.driver.Unregister(b)
}

func (d *faulty) MappedPtr(b []byte) (device.Ptr, error) {
	if err := d.faults.call("MappedPtr"); err != nil {
		return 0, err
	}
	return d.driver.MappedPtr(b)
}

func (d *faulty) Reserve(bytes int64) (device.Ptr, error) {
	if err := d.faults.alloc("Reserve"); err != nil {
		return 0, err
	}
	return d.driver.Reserve(bytes)
}

func (d *faulty) Unreserve(p device.Ptr) error {
	if err := d.faults.call("Unreserve"); err != nil {
		return err
	}
	return d.driver.Unreserve(p)
}

func (d *faulty) Map(p device.Ptr, bytes int64) error {
	if err := d.faults.alloc("Map"); err != nil {
		return err
	}
	return d.driver.Map(p, bytes)
}

func (d *faulty) Unmap(p device.Ptr, bytes int64) error {
	if err := d.faults.call("Unmap"); err != nil {
		return err
	}
	return d.driver.Unmap(p, bytes)
}

func (d *faulty) NewStream(o device.StreamOptions) (device.Stream, error) {
	if err := d.faults.call("NewStream"); err != nil {
		return nil, err
	}
	s, err := d.driver.NewStream(o)
	if err != nil {
		return nil, err
	}
	w := &stream{s, d.self, d.faults}
	if b, ok := s.(device.BatchCopier); ok {
		return &batchStream{w, b}, nil
	}
	return w, nil
}

func (d *faulty) NewEvent(o device.EventOptions) (device.Event, error) {
	if err := d.faults.call("NewEvent"); err != nil {
		return nil, err
	}
	e, err := d.driver.NewEvent(o)
	if err != nil {
		return nil, err
	}
	return &event{e, d.faults}, nil
}

func (d *faulty) Elapsed(start, end device.Event) (time.Duration, error) {
	if err := d.faults.call("Elapsed"); err != nil {
		return 0, err
	}
	return d.driver.Elapsed(inner(start), inner(end))
}

func (d *faulty) Synchronize(ctx context.Context) error {
	if err := d.faults.call("Synchronize"); err != nil {
		return err
	}
	return d.driver.Synchronize(ctx)
}

// inner is the event below the one that may fail.
func inner(e device.Event) device.Event {
	if w, ok := e.(*event); ok {
		return w.Event
	}
	return e
}

type event struct {
	device.Event
	faults *Faults
}

func (e *event) Query() (bool, error) {
	if err := e.faults.call("Event.Query"); err != nil {
		return false, err
	}
	return e.Event.Query()
}

func (e *event) Synchronize(ctx context.Context) error {
	if err := e.faults.call("Event.Synchronize"); err != nil {
		return err
	}
	return e.Event.Synchronize(ctx)
}
