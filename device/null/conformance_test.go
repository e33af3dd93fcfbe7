package null_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/devicetest"
	"github.com/cistern-ml/cistern/device/null"
)

func TestConformance(t *testing.T) {
	launch := func(p device.Ptr, bytes int64) *device.Launch {
		r := []device.Range{{Ptr: p, Bytes: bytes}}
		return &device.Launch{Name: "nothing", Func: func() { panic("it must not run") }, Reads: r, Writes: r}
	}
	devicetest.Run(t, devicetest.Backend{
		Open: func(t testing.TB) device.Device {
			d, err := null.New(null.Config{Capacity: 64 << 20})
			require.NoError(t, err)
			return d
		},
		Block: func(t testing.TB, s device.Stream) func() {
			release, err := s.(*null.Stream).Hold()
			require.NoError(t, err)
			return release
		},
		Fill: func(_ testing.TB, _ device.Device, p device.Ptr, bytes int64, _ byte) *device.Launch {
			return launch(p, bytes)
		},
		AddOne: func(_ testing.TB, _ device.Device, p device.Ptr, bytes int64) *device.Launch {
			return launch(p, bytes)
		},
		NoContents: true,
	})
}
