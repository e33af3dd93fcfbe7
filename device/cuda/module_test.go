//go:build cuda

package cuda_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestCompiledModules: GPUs of compute capability 8.x and 9.0 accept the fatbin, whose kernels wait
// on the latter. Other GPUs refuse it with an error that names the GPU and the driver, and use the
// PTX.
func TestCompiledModules(t *testing.T) {
	if os.Getenv(processor) == "" {
		for major, launches := range map[string]int{"7": 0, "8": 0, "9": 2, "12": 2} {
			out := onProcessor(t, "TestCompiledModules$", "CISTERN_PROCESSOR_MAJOR="+major)
			require.Equal(t, launches, strings.Count(out, "dependent launch of"), "%s", out)
			compiled := major == "8" || major == "9"
			require.Equal(t, compiled, strings.Contains(out, "a load of compiled code"), "%s", out)
			require.Equal(t, !compiled, strings.Contains(out, "no compiled code for the GPU"), "%s", out)
		}
		return
	}
	loadsInACapture(t)
}

// TestCompiledModulesOnGPU does the same on a GPU.
func TestCompiledModulesOnGPU(t *testing.T) {
	if os.Getenv(processor) == "" {
		loadsInACapture(t)
	}
}

// loadsInACapture captures two launches of a kernel whose module is loaded in the capture.
func loadsInACapture(t *testing.T) {
	const n = 256
	d := open(t)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	p, err := d.Alloc(n)
	require.NoError(t, err)
	host, err := d.AllocPinned(n)
	require.NoError(t, err)
	c := s.(device.GraphCapturer)
	require.NoError(t, c.BeginCapture())
	fatbin, err := os.ReadFile("testdata/test.fatbin")
	require.NoError(t, err)
	m, err := d.(device.ModuleLoader).LoadModule(fatbin)
	if errors.Is(err, device.ErrUnsupported) {
		require.ErrorContains(t, err, "the GPU has compute capability ")
		require.ErrorContains(t, err, ", the driver is of CUDA ")
		ptx, failed := os.ReadFile("testdata/test.ptx")
		require.NoError(t, failed)
		m, err = d.(device.ModuleLoader).LoadModule(ptx)
	}
	require.NoError(t, err)
	k, err := m.Kernel("addOne")
	require.NoError(t, err)
	require.NoError(t, s.Memset(p, 3, n))
	for range 2 {
		l := overBytes(t, d, "addOne", p, n)
		l.Kernel = k
		require.NoError(t, s.Launch(l))
	}
	g, err := c.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Replay(s))
	require.NoError(t, s.CopyD2H(host, p))
	require.NoError(t, s.Synchronize(context.Background()))
	require.Equal(t, bytes.Repeat([]byte{5}, n), host)
	require.NoError(t, errors.Join(g.Close(), m.Close(), d.Free(p), d.FreePinned(host), s.Close(), d.Close()))
}
