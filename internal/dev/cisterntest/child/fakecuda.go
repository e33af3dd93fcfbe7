package child

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FakeCUDA compiles the driver and the NCCL of testdata/fake in the folder of device/cuda, which
// simulate eight GPUs on host memory, and returns the environment of a process that uses them. It
// skips the test if cuda.h is missing.
func FakeCUDA(t *testing.T, folder string) (env []string) {
	t.Helper()
	dir := t.TempDir()
	nccl := filepath.Join(dir, "libnccl.so.2")
	for to, source := range map[string]string{filepath.Join(dir, "libcuda.so.1"): "driver.cc", nccl: "nccl.cc"} {
		out, err := exec.Command("g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-pthread",
			"-I/usr/local/cuda/include", "-I"+filepath.Join(folder, "include"), "-o", to,
			filepath.Join(folder, "testdata", "fake", source)).CombinedOutput()
		if strings.Contains(string(out), "cuda.h: No such file") {
			t.Skip("needs cuda.h, which the machines have that build device/cuda")
		}
		require.NoError(t, err, "%s", out)
	}
	return []string{"LD_LIBRARY_PATH=" + dir, "CISTERN_TEST_NCCL=" + nccl, "CISTERN_FAKE_NCCL=runs"}
}
