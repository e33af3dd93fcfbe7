package host_test

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/devicetest"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

func TestConformance(t *testing.T) { conformance(t, host.Config{Capacity: 64 << 20}) }

func TestConformanceOfInaccessibleMemory(t *testing.T) {
	if bits.UintSize < 64 {
		t.Skip("needs addresses of 64 bits")
	}
	conformance(t, host.Config{Capacity: 64 << 20, Inaccessible: true})
}

func conformance(t *testing.T, config host.Config) {
	devicetest.Run(t, devicetest.Backend{
		Open: func(t testing.TB) device.Device {
			d, err := host.New(config)
			require.NoError(t, err)
			return d
		},
		Block: cisterntest.Hold,
		Fill: func(t testing.TB, d device.Device, p device.Ptr, bytes int64, value byte) *device.Launch {
			return kernel(t, d, p, bytes, func(byte) byte { return value })
		},
		AddOne: func(t testing.TB, d device.Device, p device.Ptr, bytes int64) *device.Launch {
			return kernel(t, d, p, bytes, func(b byte) byte { return b + 1 })
		},
		Fault: func(t testing.TB, _ device.Device, s device.Stream) {
			require.NoError(t, s.Launch(&device.Launch{Name: "fault", Func: func() { panic("on purpose") }}))
		},
		Depth: 1024,
	})
}

// kernel applies a function to each byte.
func kernel(t testing.TB, d device.Device, p device.Ptr, bytes int64, f func(byte) byte) *device.Launch {
	r := []device.Range{{Ptr: p, Bytes: bytes}}
	b, err := d.(*host.Device).Bytes(p, bytes)
	require.NoError(t, err)
	return &device.Launch{Name: "map", Reads: r, Writes: r, Func: func() {
		for i := range b {
			b[i] = f(b[i])
		}
	}}
}
