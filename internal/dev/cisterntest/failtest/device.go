package failtest

import (
	"context"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
)

// nullDevice is a null device whose driver calls may fail, except closing.
type nullDevice struct {
	*null.Device
	faults *Faults
}

// NewNull makes a null device whose driver calls fail as f says. Closing it, its streams and its
// events does not fail.
func NewNull(f *Faults, cfg null.Config) (device.Device, error) {
	d, err := null.New(cfg)
	return &nullDevice{d, f}, err
}

func (d *nullDevice) Alloc(bytes int64) (device.Ptr, error) {
	if err := d.faults.alloc("Alloc"); err != nil {
		return 0, err
	}
	return d.Device.Alloc(bytes)
}

func (d *nullDevice) Free(p device.Ptr) error {
	if err := d.faults.call("Free"); err != nil {
		return err
	}
	return d.Device.Free(p)
}

func (d *nullDevice) MemInfo() (free, total int64, err error) {
	if err := d.faults.call("MemInfo"); err != nil {
		return 0, 0, err
	}
	return d.Device.MemInfo()
}

func (d *nullDevice) AllocPinned(bytes int64) ([]byte, error) {
	if err := d.faults.alloc("AllocPinned"); err != nil {
		return nil, err
	}
	return d.Device.AllocPinned(bytes)
}

func (d *nullDevice) FreePinned(b []byte) error {
	if err := d.faults.call("FreePinned"); err != nil {
		return err
	}
	return d.Device.FreePinned(b)
}

func (d *nullDevice) Reserve(bytes int64) (device.Ptr, error) {
	if err := d.faults.alloc("Reserve"); err != nil {
		return 0, err
	}
	return d.Device.Reserve(bytes)
}

func (d *nullDevice) Unreserve(p device.Ptr) error {
	if err := d.faults.call("Unreserve"); err != nil {
		return err
	}
	return d.Device.Unreserve(p)
}

func (d *nullDevice) Map(p device.Ptr, bytes int64) error {
	if err := d.faults.alloc("Map"); err != nil {
		return err
	}
	return d.Device.Map(p, bytes)
}

func (d *nullDevice) Unmap(p device.Ptr, bytes int64) error {
	if err := d.faults.call("Unmap"); err != nil {
		return err
	}
	return d.Device.Unmap(p, bytes)
}

func (d *nullDevice) NewStream(o device.StreamOptions) (device.Stream, error) {
	if err := d.faults.call("NewStream"); err != nil {
		return nil, err
	}
	s, err := d.Device.NewStream(o)
	if err != nil {
		return nil, err
	}
	return &stream{s, d, d.faults}, nil
}

func (d *nullDevice) NewEvent(o device.EventOptions) (device.Event, error) {
	if err := d.faults.call("NewEvent"); err != nil {
		return nil, err
	}
	e, err := d.Device.NewEvent(o)
	if err != nil {
		return nil, err
	}
	return &event{e, d.faults}, nil
}

func (d *nullDevice) Elapsed(start, end device.Event) (time.Duration, error) {
	if err := d.faults.call("Elapsed"); err != nil {
		return 0, err
	}
	return d.Device.Elapsed(inner(start), inner(end))
}

func (d *nullDevice) Synchronize(ctx context.Context) error {
	if err := d.faults.call("Synchronize"); err != nil {
		return err
	}
	return d.Device.Synchronize(ctx)
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
