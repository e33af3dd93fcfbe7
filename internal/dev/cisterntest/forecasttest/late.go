package forecasttest

import (
	"context"
	"sync"
	"testing"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// lateDevice is a host device that computes only when the host waits for it. So it is as late as a
// dry device, with the host device's own queues.
type lateDevice struct {
	*host.Device
	t    *testing.T
	mu   sync.Mutex
	held map[device.Stream]func() // by the streams below
}

// catchUp makes the device run everything that is queued.
func (d *lateDevice) catchUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, release := range d.held {
		release()
	}
	for s := range d.held {
		_ = s.Synchronize(context.Background()) // the caller's own wait returns the error
	}
	for s := range d.held {
		d.held[s] = cisterntest.Hold(d.t, s)
	}
}

func (d *lateDevice) NewStream(o device.StreamOptions) (device.Stream, error) {
	s, err := d.Device.NewStream(o)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[s] = cisterntest.Hold(d.t, s)
	return lateStream{s, d}, nil
}

func (d *lateDevice) NewEvent(o device.EventOptions) (device.Event, error) {
	e, err := d.Device.NewEvent(o)
	return lateEvent{e, d}, err
}

func (d *lateDevice) Free(p device.Ptr) error {
	d.catchUp()
	return d.Device.Free(p)
}

func (d *lateDevice) FreePinned(b []byte) error {
	d.catchUp()
	return d.Device.FreePinned(b)
}

type lateEvent struct {
	device.Event
	dev *lateDevice
}

func (e lateEvent) Synchronize(ctx context.Context) error {
	e.dev.catchUp()
	return e.Event.Synchronize(ctx)
}

type lateStream struct {
	device.Stream
	dev *lateDevice
}

func (s lateStream) Device() device.Device { return s.dev }

func (s lateStream) Record(e device.Event) error { return s.Stream.Record(e.(lateEvent).Event) }

func (s lateStream) Wait(e device.Event) error { return s.Stream.Wait(e.(lateEvent).Event) }

func (s lateStream) Synchronize(ctx context.Context) error {
	s.dev.catchUp()
	return nil
}

func (s lateStream) Close() error {
	s.dev.mu.Lock()
	for _, release := range s.dev.held { // it may wait for the others
		release()
	}
	delete(s.dev.held, s.Stream)
	s.dev.mu.Unlock()
	return s.Stream.Close()
}
