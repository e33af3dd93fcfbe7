package audit

import (
	"sync"
	"testing"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

const (
	kib = 1 << 10
	mib = 1 << 20
)

// driver is a host device that counts the calls for memory.
type driver struct {
	*host.Device
	mu    sync.Mutex
	calls []call
	// pinned are the bytes of the calls of AllocPinned since the last takePinned.
	pinned []int64
	// heldPinned is what AllocPinned has given.
	heldPinned int64
}

// call is one call of Alloc or Free.
type call struct {
	free   bool
	ptr    device.Ptr
	bytes  int64
	failed bool
}

func (d *driver) Alloc(bytes int64) (device.Ptr, error) {
	p, err := d.Device.Alloc(bytes)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call{ptr: p, bytes: bytes, failed: err != nil})
	return p, err
}

func (d *driver) Free(p device.Ptr) error {
	err := d.Device.Free(p)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call{free: true, ptr: p, failed: err != nil})
	return err
}

func (d *driver) AllocPinned(bytes int64) ([]byte, error) {
	b, err := d.Device.AllocPinned(bytes)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pinned = append(d.pinned, bytes)
	d.heldPinned += int64(len(b))
	return b, err
}

func (d *driver) takePinned() []int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.pinned
	d.pinned = nil
	return list
}

// take returns the calls since the last take.
func (d *driver) take() []call {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.calls
	d.calls = nil
	return list
}

// NewStream makes a stream whose device is d.
func (d *driver) NewStream(o device.StreamOptions) (device.Stream, error) {
	s := &driverStream{dev: d}
	if look := o.Launching; look != nil {
		o.Launching = func(_ device.Stream, name string) func(error) { return look(s, name) }
	}
	var err error
	s.Stream, err = d.Device.NewStream(o)
	s.GraphCapturer, _ = s.Stream.(device.GraphCapturer)
	return s, err
}

type driverStream struct {
	device.Stream
	device.GraphCapturer
	dev *driver
}

func (s *driverStream) Device() device.Device { return s.dev }
