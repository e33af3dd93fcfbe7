//go:build cuda

package cuda_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestLaunchesOfMuchSharedMemory: launches may use more dynamic shared memory than the default,
// which is 48 KiB less what the kernel declares, up to the GPU's limit. Concurrent launches have
// their own sizes.
func TestLaunchesOfMuchSharedMemory(t *testing.T) {
	if os.Getenv(processor) == "" {
		onProcessor(t, "TestLaunchesOfMuchSharedMemory$")
		return
	}
	launchShared(t)
}

func TestLaunchesOfMuchSharedMemoryOnGPU(t *testing.T) {
	if os.Getenv(processor) == "" {
		launchShared(t)
	}
}

func launchShared(t *testing.T) {
	d := open(t)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	p, err := d.Alloc(1 << 10)
	require.NoError(t, err)
	l := overBytes(t, d, "addOne", p, 1<<10)
	for _, bytes := range []uint32{16 << 10, 48 << 10, 60 << 10, 64 << 10, 50 << 10, 8 << 10} {
		l.SharedBytes = bytes
		require.NoError(t, s.Launch(l), "%d bytes", bytes)
	}
	var all sync.WaitGroup
	for _, bytes := range []uint32{70 << 10, 52 << 10, 90 << 10, 56 << 10} {
		all.Go(func() {
			mine := *l
			mine.SharedBytes = bytes
			for range 200 {
				assert.NoError(t, s.Launch(&mine), "%d bytes", bytes)
			}
		})
	}
	all.Wait()
	l.SharedBytes = 1 << 20
	require.ErrorContains(t, s.Launch(l), "1048576 bytes of shared memory")
	require.NoError(t, s.Synchronize(context.Background()))
	require.NoError(t, errors.Join(d.Free(p), s.Close()))
}
