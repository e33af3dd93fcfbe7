//go:build cuda

package cuda_test

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

var (
	//go:embed internal/ptx/kernels.cu
	kernelSource string
	//go:embed testdata/test.cu
	testSource string
)

// onProcessor runs tests of this binary with the driver of testdata/driver.c, which runs the kernels of this package on
// the processor, and returns what they print.
func onProcessor(t *testing.T, tests string, env ...string) string {
	dir := t.TempDir()
	kernels := strings.ReplaceAll(kernelSource+testSource, `extern "C"`, "")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kernels.h"), []byte(kernels), 0o644))
	out, err := exec.Command("gcc", "-O1", "-shared", "-fPIC", "-w", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error",
		"-I", dir, "-o", filepath.Join(dir, "libcuda.so.1"), "testdata/driver.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run", tests)
	cmd.Env = append(append(os.Environ(), "LD_LIBRARY_PATH="+dir, processor+"=1"), env...)
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// processor is set where the driver is that of testdata/driver.c.
const processor = "CISTERN_PROCESSOR_GPU"

// TestBatch runs the suite's tests of batches, but for those with work that waits, by the kernel and without it.
func TestBatch(t *testing.T) {
	const suite = "TestConformance/Batch/^(copies|at_any|one)"
	for _, env := range []string{"", "CISTERN_NO_GATHER=1"} {
		out := onProcessor(t, suite, env)
		require.Equal(t, 4, strings.Count(out, "--- PASS: TestConformance/Batch/"), "%s", out)
		require.Equal(t, env == "", strings.Contains(out, "launch for 150, 1 blocks each"), "%s", out)
		require.Equal(t, env == "", strings.Contains(out, "launch for 104, 4 blocks each"), "%s", out)
	}
}

// TestBatchInLaunches: short ranges take a launch for each 170, long ones a copy each, and nothing of Go's heap.
func TestBatchInLaunches(t *testing.T) {
	if os.Getenv(processor) == "" {
		out := onProcessor(t, "TestBatchInLaunches$")
		require.Equal(t, 2, strings.Count(out, "launch for 170, 1 blocks each"), "%s", out)
		require.Equal(t, 1, strings.Count(out, "launch for 61, 4 blocks each"), "%s", out)
		require.Equal(t, 3, strings.Count(out, "copy of 65537"), "%s", out)
		return
	}
	d := open(t)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	const n, each = 404, 64<<10 + 1
	p, err := d.Alloc(n * each)
	require.NoError(t, err)
	host, err := d.AllocPinned(n * each)
	require.NoError(t, err)
	var src [][]byte
	var dst []device.Ptr
	for i := range n {
		bytes := 100
		if i%150 == 0 {
			bytes = each
		} else if i == n-1 {
			bytes = each - 1
		}
		src, dst = append(src, host[i*each:][:bytes]), append(dst, p+device.Ptr(i*each))
	}
	batch := s.(device.BatchCopier)
	require.NoError(t, batch.CopyH2DBatch(dst, src))
	allocated := testing.AllocsPerRun(10, func() {
		require.NoError(t, batch.CopyH2DBatch(dst[1:2], src[1:2]))
		require.NoError(t, batch.CopyD2HBatch(src[1:2], dst[1:2]))
	})
	require.True(t, allocated == 0 || race.Enabled, "%v allocations", allocated) // in race builds pools forget
	require.NoError(t, s.Close())
	require.NoError(t, d.FreePinned(host))
	require.NoError(t, d.Free(p))
	require.NoError(t, d.Close())
}
