//go:build cuda

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/devicetest"
)

func TestConformance(t *testing.T) {
	require.NoError(t, open(t).Close()) // one skip where there is no GPU
	devicetest.Run(t, devicetest.Backend{
		Open:  func(t testing.TB) device.Device { return open(t) },
		Block: func(t testing.TB, s device.Stream) func() { return block(t, s) },
		Fill: func(t testing.TB, d device.Device, p device.Ptr, bytes int64, value byte) *device.Launch {
			return overBytes(t, d, "fill", p, bytes, uint64(value))
		},
		AddOne: func(t testing.TB, d device.Device, p device.Ptr, bytes int64) *device.Launch {
			return overBytes(t, d, "addOne", p, bytes)
		},
		Fault: func(t testing.TB, d device.Device, s device.Stream) {
			require.NoError(t, s.Launch(&device.Launch{Name: "fault", Kernel: kernel(t, d, "fault"), Grid: one, Block: one,
				Args: []uint64{0}}))
		},
		Shared:    true,
		FreeWaits: true,
	})
}
