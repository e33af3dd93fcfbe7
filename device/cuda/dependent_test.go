//go:build cuda

package cuda_test

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/cuda"
)

//go:embed testdata/test.ptx
var testPTX string

// TestDependentPTX: in PTX for a GPU that supports it, every kernel waits first, and nothing else
// changes.
func TestDependentPTX(t *testing.T) {
	got := string(cuda.Dependent([]byte(testPTX)))
	require.Equal(t, strings.Count(testPTX, ".entry "), strings.Count(got, "griddepcontrol.wait;"))
	for _, kernel := range strings.Split(got, ".entry ")[1:] {
		_, body, found := strings.Cut(kernel, "{")
		require.True(t, found)
		require.True(t, strings.HasPrefix(body, "\n\tgriddepcontrol.wait;\n"), "%.200s", kernel)
	}
	back := strings.ReplaceAll(got, "\n\tgriddepcontrol.wait;\n", "")
	require.Equal(t, strings.Replace(testPTX, ".target sm_70", ".target sm_90", 1), back)

	const head, kernel = ".version 7.0\n.target sm_80\n.address_size 64\n", ".entry declared(.param .u64 a);\n// .entry in words {\n\t.weak .entry one()\n\t.maxntid 256, 1, 1\n{\n\tret;\n}\n.func two() { ret; }\n"
	want := ".version 7.8\n.target sm_90\n.address_size 64\n" + strings.Replace(kernel, "1, 1\n{", "1, 1\n{\n\tgriddepcontrol.wait;\n", 1)
	require.Equal(t, want, string(cuda.Dependent([]byte(head+kernel))))
	for _, same := range []string{".version 7.8\n.target sm_90\n", ".version 8.0\n.target sm_100\n"} {
		require.True(t, strings.HasPrefix(string(cuda.Dependent([]byte(same+kernel))), same), same)
	}
	for name, image := range map[string]string{
		"a binary":                  "\x7fELF",
		"nothing":                   "",
		"PTX of one kind of GPU":    ".version 8.0\n.target sm_90a\n" + kernel,
		"PTX that waits by itself":  head + ".entry one() { griddepcontrol.wait; ret; }",
		"PTX that lacks its target": ".version 7.0\n" + kernel,
	} {
		require.Nil(t, cuda.Dependent([]byte(image)), name)
	}
}

// TestDependentLaunches: on GPUs of compute capability 9.0 and up, kernels that were loaded with a
// wait are launched so that they may begin before the previous kernel has ended.
func TestDependentLaunches(t *testing.T) {
	if os.Getenv(processor) == "" {
		require.NotContains(t, onProcessor(t, "TestDependentLaunches$", "CISTERN_PROCESSOR_MAJOR=8"), "dependent launch")
		require.NotContains(t, onProcessor(t, "TestDependentLaunches$", "CISTERN_PROCESSOR_MAJOR=9", "CISTERN_NO_WAITS=1"), "dependent launch")
		require.Equal(t, 80, strings.Count(onProcessor(t, "TestDependentLaunches$", "CISTERN_PROCESSOR_MAJOR=9"), "dependent launch of 256 blocks"))
		return
	}
	addInOrder(t, 1<<16)
}

// TestDependentLaunchesOnGPU: results are those of one kernel after the other, also in a graph.
func TestDependentLaunchesOnGPU(t *testing.T) {
	if os.Getenv(processor) == "" {
		addInOrder(t, 1<<22)
	}
}

// addInOrder adds to the same memory in launches that must not overlap.
func addInOrder(t *testing.T, n int64) {
	d := open(t)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	p, err := d.Alloc(n)
	require.NoError(t, err)
	host, err := d.AllocPinned(n)
	require.NoError(t, err)
	add := func() {
		for range 40 {
			require.NoError(t, s.Launch(overBytes(t, d, "addOne", p, n)))
		}
	}
	require.NoError(t, s.Memset(p, 0, n))
	add()
	c := s.(device.GraphCapturer)
	require.NoError(t, c.BeginCapture())
	add()
	g, err := c.EndCapture()
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, g.Replay(s))
	}
	require.NoError(t, s.CopyD2H(host, p))
	require.NoError(t, s.Synchronize(context.Background()))
	require.Equal(t, bytes.Repeat([]byte{120}, int(n)), host)
	require.NoError(t, errors.Join(g.Close(), d.Free(p), d.FreePinned(host), s.Close()))
}
