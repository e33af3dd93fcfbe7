package dry

import (
	"errors"

	"github.com/cistern-ml/cistern/device"
)

// below is the interface that front forwards. It leaves out everything that depends on time.
type below interface {
	device.Device
	device.VirtualMemory
	device.Collectives
}

// front is a dry device as programs see it.
type front struct {
	below
	name  string
	props device.Properties
}

func (d *front) Name() string                  { return d.name }
func (d *front) Properties() device.Properties { return d.props }
func (d *front) String() string                { return d.name }

// Alloc forwards the call, and puts this device's name in the error.
func (d *front) Alloc(bytes int64) (device.Ptr, error) {
	p, err := d.below.Alloc(bytes)
	return p, d.named(err)
}

// AllocPinned forwards the call, as Alloc does.
func (d *front) AllocPinned(bytes int64) ([]byte, error) {
	b, err := d.below.AllocPinned(bytes)
	return b, d.named(err)
}

// Map forwards the call, as Alloc does.
func (d *front) Map(p device.Ptr, bytes int64) error { return d.named(d.below.Map(p, bytes)) }

func (d *front) named(err error) error {
	if e, ok := errors.AsType[*device.Error](err); ok {
		named := *e
		named.Device = d.name
		return &named
	}
	return err
}

// visible stands for a host device.
type visible struct{ front }

func newVisible(under device.Device) *visible {
	props := under.Properties()
	props.Accessible, props.Dry = false, true
	return &visible{front{under.(below), "dry:host", props}}
}

// Bytes returns a slice at the address, where the process has no memory: an access crashes the
// process.
func (d *visible) Bytes(p device.Ptr, bytes int64) ([]byte, error) {
	return d.below.(device.HostVisible).Bytes(p, bytes)
}

var _ device.HostVisible = (*visible)(nil)
