package cisterntest

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
)

// Untimed is a host device that is not a device.BusyTimer. GPUs are not BusyTimers either.
type Untimed struct{ *host.Device }

// BusyTime hides the host device's method, because its signature differs.
func (*Untimed) BusyTime() {}

// NewStream makes a stream of d.
func (d *Untimed) NewStream(o device.StreamOptions) (device.Stream, error) {
	s := &untimedStream{dev: d}
	if look := o.Launching; look != nil {
		o.Launching = func(_ device.Stream, name string) func(error) { return look(s, name) }
	}
	var err error
	s.Stream, err = d.Device.NewStream(o)
	return s, err
}

type untimedStream struct {
	device.Stream
	dev *Untimed
}

func (s *untimedStream) Device() device.Device { return s.dev }
