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

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
)

var (
	//go:embed internal/ptx/kernels.cu
	kernelSource string
	//go:embed testdata/test.cu
	testSource string
)

// onProcessor runs tests of this binary with the driver of testdata/driver.c, which runs the
// kernels of this package on the processor, and returns their output.
func onProcessor(t *testing.T, tests string, env ...string) string {
	dir := t.TempDir()
	kernels := strings.ReplaceAll(kernelSource+testSource, `extern "C"`, "")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kernels.h"), []byte(kernels), 0o644))
	out, err := exec.Command("gcc", "-O1", "-shared", "-fPIC", "-w", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error",
		"-I", dir, "-o", filepath.Join(dir, "libcuda.so.1"), "testdata/driver.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	printed, err := child.Test(tests, append(env, "LD_LIBRARY_PATH="+dir, processor+"=1")...)
	require.NoError(t, err, "%s", printed)
	return printed
}

// processor is set if the driver is that of testdata/driver.c.
const processor = "CISTERN_PROCESSOR_GPU"
