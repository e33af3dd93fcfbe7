//go:build unix

package parallel_test

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// TestParallelCheckpointsOnAFullDisk: on a full disk Save fails on all ranks, which continue
// together.
func TestParallelCheckpointsOnAFullDisk(t *testing.T) {
	out, err := child.Test("^TestFullDiskProcess$", "CISTERN_TEST_FULL_DISK=1")
	require.NoError(t, err, out)
	if strings.Contains(out, "needs at least 3 ranks") {
		t.Skip("as TestFullDiskProcess")
	}
	require.Contains(t, out, "--- PASS: TestFullDiskProcess")
}

// TestFullDiskProcess runs in its own process and limits the size of its files, so that the first
// write beyond the limit fails.
func TestFullDiskProcess(t *testing.T) {
	if os.Getenv("CISTERN_TEST_FULL_DISK") == "" {
		t.Skip("run by TestParallelCheckpointsOnAFullDisk, in a process of its own")
	}
	signal.Ignore(syscall.SIGXFSZ)
	var unlimited syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &unlimited))
	limited := unlimited
	limited.Cur = 4096
	rankGroup := tapetest.NewCrew(t, 3, 64<<20, 20*time.Second)
	folder := t.TempDir()
	path := filepath.Join(folder, "checkpoint")
	rankGroup.Each(func(r *tapetest.Rank) error {
		c := mlpCourse
		c.cfg.Shard = parallel.ShardGradients
		s, err := c.begin(r)
		if err == nil {
			err = s.eager(0)
		}
		if err == nil && r.N == 0 {
			err = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limited)
		}
		if err != nil {
			return errors.Join(err, s.end())
		}
		if err = s.checkpoint().Save(r.Ctx, path); (r.N == 0) != errors.Is(err, syscall.EFBIG) || (r.N == 0) == errors.Is(err, device.ErrAborted) {
			return errors.Join(fmt.Errorf("Save: %w", err), s.end())
		}
		if r.N == 0 {
			err = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &unlimited)
		} else {
			err = nil
		}
		if err == nil {
			err = s.eager(1)
		}
		if err == nil {
			err = s.checkpoint().Save(r.Ctx, path+" elsewhere")
		}
		return errors.Join(err, s.end())
	})
	left, err := filepath.Glob(filepath.Join(folder, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{path + " elsewhere"}, left)
	hidden, err := filepath.Glob(filepath.Join(folder, ".*"))
	require.NoError(t, err)
	require.Empty(t, hidden)
}
