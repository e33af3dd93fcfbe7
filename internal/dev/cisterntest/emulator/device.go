//go:build emulator

package emulator

import (
	"net/url"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
)

func init() { device.Register("emulated", driver{}) }

type driver struct{}

func (driver) Open(string, url.Values) (device.Device, error) {
	d, err := host.New(host.Config{})
	if err != nil {
		return nil, err
	}
	return &emulated{Device: d}, nil
}

// emulated is a host device that hides its memory from programs and runs kernels of modules.
type emulated struct {
	device.Device
}

func (d *emulated) Name() string { return "emulated" }

func (d *emulated) Properties() device.Properties {
	p := d.Device.Properties()
	p.Accessible = false
	return p
}

func (d *emulated) NewStream(o device.StreamOptions) (device.Stream, error) {
	s, err := d.Device.NewStream(o)
	if err != nil {
		return nil, err
	}
	return &stream{Stream: s, dev: d}, nil
}

type stream struct {
	device.Stream
	dev *emulated
}

func (s *stream) Device() device.Device { return s.dev }

// Launch copies the arguments, which the caller may reuse.
func (s *stream) Launch(l *device.Launch) error {
	k, ok := l.Kernel.(*kernel)
	if !ok {
		return &device.Error{Op: "Launch", Device: "emulated", Detail: l.Name + ": the kernel is not of a module", Err: device.ErrInvalid}
	}
	run := k.prepare(l)
	return s.Stream.Launch(&device.Launch{Name: l.Name, Reads: l.Reads, Writes: l.Writes, Func: run})
}
