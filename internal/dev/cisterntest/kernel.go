package cisterntest

import (
	_ "embed"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

//go:embed kernels/spin.ptx
var image []byte

// modules are the loaded kernels, by the device's ID. They end with the device.
var modules sync.Map

// Kernel returns a kernel of kernels/spin.cu, on a device that loads kernels. The first call loads
// them all, so no stream may be held up before it.
func Kernel(t testing.TB, dev device.Device, name string) any {
	t.Helper()
	m, ok := modules.Load(dev.ID())
	if !ok {
		loaded, err := dev.(device.ModuleLoader).LoadModule(image)
		require.NoError(t, err)
		m, _ = modules.LoadOrStore(dev.ID(), loaded)
	}
	k, err := m.(device.Module).Kernel(name)
	require.NoError(t, err)
	return k
}
