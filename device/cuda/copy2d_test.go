//go:build cuda

package cuda_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestCopy2D runs the suite's tests of strided copies, except those with work that waits.
func TestCopy2D(t *testing.T) {
	out := onProcessor(t, "TestConformance/Copy2D/^(up|the_last|an_invalid)")
	require.Equal(t, 3, strings.Count(out, "--- PASS: TestConformance/Copy2D/"), "%s", out)
	for _, way := range []string{"copy from 1 to 4 of 13 rows", "copy from 4 to 4 of 13 rows", "copy from 4 to 1 of 13 rows", "copy of 91"} {
		require.Contains(t, out, way)
	}
}

// TestCopy2DOfRowsFarApart: pitches beyond the GPU's limit are refused, and rows without gaps have
// no limit.
func TestCopy2DOfRowsFarApart(t *testing.T) {
	if os.Getenv(processor) == "" {
		out := onProcessor(t, "TestCopy2DOfRowsFarApart$")
		require.Contains(t, out, "copy from 1 to 4 of 2 rows")
		require.Contains(t, out, "copy of 2048")
		return
	}
	const pitch = 1<<31 - 1
	d := open(t)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	p, err := d.Alloc(pitch + 1<<20)
	require.NoError(t, err)
	host, err := d.AllocPinned(4096)
	require.NoError(t, err)
	c := device.Copy2D{Width: 1024, Height: 2, Dst: p, DstPitch: pitch, SrcHost: host, SrcPitch: 1024}
	require.NoError(t, s.Copy2D(&c))
	c.DstPitch++
	err = s.Copy2D(&c)
	require.ErrorIs(t, err, device.ErrInvalid)
	require.ErrorContains(t, err, "the pitch is 2147483648 bytes; a GPU copies rows that are at most 2147483647 bytes apart")
	c.Width, c.Height, c.SrcPitch = 2048, 1, 2048
	require.NoError(t, s.Copy2D(&c))
	require.NoError(t, s.Close())
	require.NoError(t, d.FreePinned(host))
	require.NoError(t, d.Free(p))
	require.NoError(t, d.Close())
}
