package host_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/opened"
	"github.com/cistern-ml/cistern/internal/race"
)

// TestAStuckDeviceRefusesEverything: after a failed kernel each call returns the sticky error.
func TestAStuckDeviceRefusesEverything(t *testing.T) {
	d, s := newDevice(t, 64<<20)
	unit := d.Granularity()
	p, err := d.Alloc(64)
	require.NoError(t, err)
	pinned, err := d.AllocPinned(64)
	require.NoError(t, err)
	registered := make([]byte, 64)
	require.NoError(t, d.Register(registered))
	reserved, err := d.Reserve(2 * unit)
	require.NoError(t, err)
	require.NoError(t, d.Map(reserved, unit))
	events := make([]device.Event, 2)
	for i := range events {
		events[i], err = d.NewEvent(device.EventOptions{Timed: true})
		require.NoError(t, err)
		require.NoError(t, s.Record(events[i]))
	}
	require.NoError(t, s.Synchronize(background))
	d.Fail(host.FaultLaunch, 1)
	require.NoError(t, s.Launch(&device.Launch{Func: func() {}}))
	require.ErrorIs(t, s.Synchronize(background), device.ErrSticky)

	for name, call := range map[string]func() error{
		"Alloc":             func() error { _, err := d.Alloc(64); return err },
		"AllocPinned":       func() error { _, err := d.AllocPinned(64); return err },
		"Bytes":             func() error { _, err := d.Bytes(p, 64); return err },
		"BusyTime":          func() error { _, err := d.BusyTime(events[0], events[1]); return err },
		"Elapsed":           func() error { _, err := d.Elapsed(events[0], events[1]); return err },
		"Map":               func() error { return d.Map(reserved+device.Ptr(unit), unit) },
		"MappedPtr":         func() error { _, err := d.MappedPtr(pinned); return err },
		"Memset":            func() error { return s.Memset(p, 1, 64) },
		"MemInfo":           func() error { _, _, err := d.MemInfo(); return err },
		"NewCommunicatorID": func() error { _, err := d.NewCommunicatorID(); return err },
		"NewEvent":          func() error { _, err := d.NewEvent(device.EventOptions{}); return err },
		"NewStream":         func() error { _, err := d.NewStream(device.StreamOptions{}); return err },
		"Register":          func() error { return d.Register(make([]byte, 64)) },
		"Reserve":           func() error { _, err := d.Reserve(unit); return err },
		"Synchronize":       func() error { return d.Synchronize(background) },
		"Unmap":             func() error { return d.Unmap(reserved, unit) },
		"Unregister":        func() error { return d.Unregister(registered) },
		"Unreserve":         func() error { return d.Unreserve(reserved) },
		"Free":              func() error { return d.Free(p) },
		"FreePinned":        func() error { return d.FreePinned(pinned) },
	} {
		require.ErrorIs(t, call(), device.ErrSticky, name)
	}
	require.ErrorIs(t, d.Close(), device.ErrSticky)
}

// TestOpenHandlesAreSeen: the ledger that tests read lists resources that a program leaves open,
// without those that it closes.
func TestOpenHandlesAreSeen(t *testing.T) {
	if race.Enabled {
		t.Skip("race builds keep no ledger")
	}
	type closer interface{ Close() error }
	for kind, open := range map[string]func(d *host.Device) (closer, error){
		"stream":      func(d *host.Device) (closer, error) { return d.NewStream(device.StreamOptions{}) },
		"event":       func(d *host.Device) (closer, error) { return d.NewEvent(device.EventOptions{}) },
		"timed event": func(d *host.Device) (closer, error) { return d.NewEvent(device.EventOptions{Timed: true}) },
		"graph": func(d *host.Device) (closer, error) {
			s, err := d.NewStream(device.StreamOptions{})
			require.NoError(t, err)
			require.NoError(t, s.(device.GraphCapturer).BeginCapture())
			g, err := s.(device.GraphCapturer).EndCapture()
			require.NoError(t, s.Close())
			return g, err
		},
		"communicator": func(d *host.Device) (closer, error) {
			id, err := d.NewCommunicatorID()
			require.NoError(t, err)
			return d.NewCommunicator(background, id, 0, 1, device.CommunicatorOptions{Timeout: time.Minute})
		},
	} {
		for _, closes := range []bool{false, true} {
			d, err := host.New(host.Config{Capacity: 1 << 20})
			require.NoError(t, err)
			h, err := open(d)
			require.NoError(t, err)
			if closes {
				require.NoError(t, h.Close())
			}
			_ = d.Close()
			left := opened.Take(d.ID())
			if closes {
				require.Empty(t, left, kind)
				continue
			}
			require.Len(t, left, 1, kind)
			require.Equal(t, kind, left[0].Kind.String())
		}
	}
}
