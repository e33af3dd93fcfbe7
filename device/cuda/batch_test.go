//go:build cuda

package cuda_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// TestBatch runs the suite's tests of batches, except those with work that waits, with the kernel
// and without it.
func TestBatch(t *testing.T) {
	const suite = "TestConformance/Batch/^(copies|at_any|one)"
	for _, env := range []string{"", "CISTERN_NO_GATHER=1"} {
		out := onProcessor(t, suite, env)
		require.Equal(t, 4, strings.Count(out, "--- PASS: TestConformance/Batch/"), "%s", out)
		require.Equal(t, env == "", strings.Contains(out, "launch for 150, 1 blocks each"), "%s", out)
		require.Equal(t, env == "", strings.Contains(out, "launch for 104, 4 blocks each"), "%s", out)
	}
}

// TestBatchInLaunches: 170 short ranges take one launch, each long one takes a copy, and nothing is
// allocated on Go's heap.
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
	// In race builds sync.Pool drops values.
	require.True(t, allocated == 0 || race.Enabled, "%v allocations", allocated)
	require.NoError(t, s.Close())
	require.NoError(t, d.FreePinned(host))
	require.NoError(t, d.Free(p))
	require.NoError(t, d.Close())
}
