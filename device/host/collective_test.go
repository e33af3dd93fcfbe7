package host_test

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/devicetest"
	"github.com/cistern-ml/cistern/device/host"
)

// TestCollectives gives each rank its own device.
func TestCollectives(t *testing.T) {
	devicetest.RunCollectives(t, devicetest.CollectivesBackend{MaxRanks: 8, Open: func(t testing.TB, _ int) device.Device {
		d, err := host.New(host.Config{Capacity: 64 << 20})
		require.NoError(t, err)
		return d
	}})
}

// TestCollectivesOfOneDevice puts all ranks on one device, whose memory Go code can't access.
func TestCollectivesOfOneDevice(t *testing.T) {
	var shared *host.Device
	devicetest.RunCollectives(t, devicetest.CollectivesBackend{MaxRanks: 4, Open: func(t testing.TB, rank int) device.Device {
		if rank == 0 {
			d, err := host.New(host.Config{Capacity: 64 << 20, Inaccessible: bits.UintSize == 64})
			require.NoError(t, err)
			shared = d
		}
		return shared // its first Close is the last
	}})
}
