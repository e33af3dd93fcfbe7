package backendtest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTranscendentalTolerance takes the sigmoid of -0x1.b77c44p+1, which lies 0.49964 units above a
// number of float32. Both neighbours are accepted, and the numbers next to these are not.
func TestTranscendentalTolerance(t *testing.T) {
	const want = 0x1.002038ffd1367p-5
	tol, below := transcendental[float32](), float32(0x1.002038p-5)
	above := math.Nextafter32(below, 1)
	require.True(t, agrees(below, want, want, tol))
	require.True(t, agrees(above, want, want, tol))
	require.False(t, agrees(math.Nextafter32(below, 0), want, want, tol))
	require.False(t, agrees(math.Nextafter32(above, 1), want, want, tol))
	require.False(t, agrees(above, want-0x1p-37, want, tol), "0.502 units are the bound")
}
