//go:build cuda

package cuda_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
)

// opening returns the output of a process that opens a GPU with this driver.
func opening(t *testing.T, driver string) string {
	out, err := child.Test("TestOpenSaysWhy$", "LD_LIBRARY_PATH="+filepath.Dir(driver))
	require.NoError(t, err, "%s", out)
	require.Contains(t, out, "PASS: TestOpenSaysWhy")
	return out
}

func TestStartsWithoutDriver(t *testing.T) {
	driver := filepath.Join(t.TempDir(), "libcuda.so.1")
	require.NoError(t, os.WriteFile(driver, nil, 0o644))
	out := opening(t, driver)
	require.Contains(t, out, "no such device")
	require.Contains(t, out, "NVIDIA's driver is not installed: "+driver)
}

func TestStartsWithoutGPU(t *testing.T) {
	driver := filepath.Join(t.TempDir(), "libcuda.so.1")
	library(t, driver, `
int cuInit(unsigned flags) { return 100; }
int cuGetErrorName(int code, const char **name) { *name = "A_DRIVER_WITHOUT_GPU"; return 0; }
`)
	require.Contains(t, opening(t, driver), "NVIDIA's driver finds no GPU: A_DRIVER_WITHOUT_GPU")
}

// library compiles C to a shared library.
func library(t *testing.T, path, source string) string {
	require.NoError(t, os.WriteFile(path+".c", []byte(source), 0o644))
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", path, path+".c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}
