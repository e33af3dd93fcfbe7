package host_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/devicetest"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/cisterntest"
)

func TestConformance(t *testing.T) {
	devicetest.Run(t, devicetest.Backend{
		Open:  func(t testing.TB) device.Device { return cisterntest.Host(t, 64<<20) },
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

// kernel maps each byte.
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
