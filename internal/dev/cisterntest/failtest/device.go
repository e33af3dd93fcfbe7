package failtest

import (
	"context"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/device/null"
)

// NewNull makes a null device whose driver calls fail according to f. Closing it, its streams and
// its events does not fail.
func NewNull(f *Faults, cfg null.Config) (device.Device, error) {
	below, err := null.New(cfg)
	if err != nil {
		return nil, err
	}
	d := &nullDevice{&calls{to: below, faults: f}, nullBelow{below}}
	d.calls.dev, d.calls.wrap = d, func(s *stream) device.Stream { return s }
	return d, nil
}

// NewHost makes a host device whose driver calls fail according to f. Kernels run on it, except
// those of failed launches. Closing it, its streams and its events does not fail.
func NewHost(f *Faults, cfg host.Config) (device.Device, error) {
	below, err := host.New(cfg)
	if err != nil {
		return nil, err
	}
	d := &hostDevice{&calls{to: below, faults: f}, hostBelow{below}}
	d.calls.dev, d.calls.wrap = d, func(s *stream) device.Stream { return &hostStream{s, s.Stream.(hostOnly)} }
	return d, nil
}

// nullDevice is a null device whose methods are replaced by those of calls.
type nullDevice struct {
	*calls
	nullBelow
}

// hostDevice is nullDevice for a host device.
type hostDevice struct {
	*calls
	hostBelow
}

type (
	nullBelow struct{ *null.Device }
	hostBelow struct{ *host.Device }
)

// calls are the driver calls of a device that may fail.
type calls struct {
	to interface {
		device.Device
		device.VirtualMemory
	}
	dev    device.Device // with its other methods
	wrap   func(*stream) device.Stream
	faults *Faults
}

func (d *calls) Alloc(bytes int64) (device.Ptr, error) {
	if err := d.faults.alloc("Alloc"); err != nil {
		return 0, err
	}
	return d.to.Alloc(bytes)
}

func (d *calls) Free(p device.Ptr) error {
	if err := d.faults.call("Free"); err != nil {
		return err
	}
	return d.to.Free(p)
}

func (d *calls) MemInfo() (free, total int64, err error) {
	if err := d.faults.call("MemInfo"); err != nil {
		return 0, 0, err
	}
	return d.to.MemInfo()
}

func (d *calls) AllocPinned(bytes int64) ([]byte, error) {
	if err := d.faults.alloc("AllocPinned"); err != nil {
		return nil, err
	}
	return d.to.AllocPinned(bytes)
}

func (d *calls) FreePinned(b []byte) error {
	if err := d.faults.call("FreePinned"); err != nil {
		return err
	}
	return d.to.FreePinned(b)
}

func (d *calls) Register(b []byte) error {
	if err := d.faults.call("Register"); err != nil {
		return err
	}
	return d.to.Register(b)
}

func (d *calls) Unregister(b []byte) error {
	if err := d.faults.call("Unregister"); err != nil {
		return err
	}
	return d.to.Unregister(b)
}

func (d *calls) MappedPtr(b []byte) (device.Ptr, error) {
	if err := d.faults.call("MappedPtr"); err != nil {
		return 0, err
	}
	return d.to.MappedPtr(b)
}

func (d *calls) Reserve(bytes int64) (device.Ptr, error) {
	if err := d.faults.alloc("Reserve"); err != nil {
		return 0, err
	}
	return d.to.Reserve(bytes)
}

func (d *calls) Unreserve(p device.Ptr) error {
	if err := d.faults.call("Unreserve"); err != nil {
		return err
	}
	return d.to.Unreserve(p)
}

func (d *calls) Map(p device.Ptr, bytes int64) error {
	if err := d.faults.alloc("Map"); err != nil {
		return err
	}
	return d.to.Map(p, bytes)
}

func (d *calls) Unmap(p device.Ptr, bytes int64) error {
	if err := d.faults.call("Unmap"); err != nil {
		return err
	}
	return d.to.Unmap(p, bytes)
}

func (d *calls) NewStream(o device.StreamOptions) (device.Stream, error) {
	if err := d.faults.call("NewStream"); err != nil {
		return nil, err
	}
	var wrapped device.Stream
	if look := o.Launching; look != nil {
		o.Launching = func(_ device.Stream, name string) func(error) { return look(wrapped, name) }
	}
	s, err := d.to.NewStream(o)
	if err != nil {
		return nil, err
	}
	wrapped = d.wrap(&stream{s, d.dev, d.faults})
	return wrapped, nil
}

func (d *calls) NewEvent(o device.EventOptions) (device.Event, error) {
	if err := d.faults.call("NewEvent"); err != nil {
		return nil, err
	}
	e, err := d.to.NewEvent(o)
	if err != nil {
		return nil, err
	}
	return &event{e, d.faults}, nil
}

func (d *calls) Elapsed(start, end device.Event) (time.Duration, error) {
	if err := d.faults.call("Elapsed"); err != nil {
		return 0, err
	}
	return d.to.Elapsed(inner(start), inner(end))
}

func (d *calls) Synchronize(ctx context.Context) error {
	if err := d.faults.call("Synchronize"); err != nil {
		return err
	}
	return d.to.Synchronize(ctx)
}

// inner returns the event below one that may fail.
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
