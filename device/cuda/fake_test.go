//go:build cuda

package cuda_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
)

// TestFakeCollectives runs the tests of collectives in a process with a driver and an NCCL that are none: eight GPUs of host memory, where ranks connect in their first
// operations and those that don't match hang. So the suite meets this package's code with any number of ranks, and without a GPU.
func TestFakeCollectives(t *testing.T) {
	dir := t.TempDir()
	driver, nccl := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "libnccl.so.2")
	for to, source := range map[string]string{driver: "driver.cc", nccl: "nccl.cc"} {
		out, err := exec.Command("g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-I/usr/local/cuda/include", "-Iinclude", "-o", to,
			filepath.Join("testdata", "fake", source)).CombinedOutput()
		if strings.Contains(string(out), "cuda.h: No such file") {
			t.Skip("needs cuda.h, which the machines have that build this package")
		}
		require.NoError(t, err, "%s", out)
	}
	out, err := child.Test("^Test(Collective|NoNCCL)", "LD_LIBRARY_PATH="+dir, ncclPath+"="+nccl, fakeNCCL+"=runs")
	require.NoError(t, err, "%s", out)
	require.NotContains(t, out, "--- SKIP")
	for _, name := range []string{"TestCollectives", "TestCollectives/joining", "TestCollectives/random_programs/8_ranks", "TestCollectiveAlone", "TestNoNCCL"} {
		require.True(t, strings.Contains(out, "--- PASS: "+name+" "), "%s", out)
	}
}
