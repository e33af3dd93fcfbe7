package cisterntest

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// Hold lets s, a stream of a device whose kernels are Go functions, wait until release is called, or else until the
// test's clean-up, so that the device can close. Calling release again does nothing.
func Hold(t testing.TB, s device.Stream) (release func()) {
	t.Helper()
	gate := make(chan struct{})
	require.NoError(t, s.Launch(&device.Launch{Name: "hold", Func: func() { <-gate }}))
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	return release
}
