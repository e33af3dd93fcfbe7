//go:build cuda

package cuda_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
)

// TestFakeCollectives runs the tests of collectives in a process with a fake driver and a fake
// NCCL: eight GPUs in host memory, whose ranks connect in their first operations and hang if they
// don't match. So the suite tests this package with any number of ranks and without a GPU.
func TestFakeCollectives(t *testing.T) {
	out, err := child.Test("^Test(Collective|NoNCCL)", child.FakeCUDA(t, ".")...)
	require.NoError(t, err, "%s", out)
	require.NotContains(t, out, "--- SKIP")
	for _, name := range []string{"TestCollectives", "TestCollectives/joining", "TestCollectives/random_programs/8_ranks", "TestCollectiveAlone", "TestNoNCCL"} {
		require.True(t, strings.Contains(out, "--- PASS: "+name+" "), "%s", out)
	}
}
