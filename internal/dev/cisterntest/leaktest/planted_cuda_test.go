//go:build cuda

package leaktest_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/cuda"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
)

// TestPlantedHandlesOfCUDA is TestPlantedHandles with a driver that needs no GPU.
func TestPlantedHandlesOfCUDA(t *testing.T) {
	needsLedgers(t)
	out, err := child.Test("^TestPlantedOnGPU$", child.FakeCUDA(t, "../../../../device/cuda")...)
	require.NoError(t, err, "%s", out)
	require.NotContains(t, out, "--- SKIP")
}

func TestPlantedOnGPU(t *testing.T) {
	nccl := os.Getenv("CISTERN_TEST_NCCL")
	if nccl == "" {
		t.Skip("run by TestPlantedHandlesOfCUDA, in a process of its own")
	}
	open := func() device.Device { return must(device.Open("cuda:0?nccl=" + nccl)) }
	plants := map[string]plant{
		"module": func(d device.Device) error { return second(modules(d).LoadModule(ptx)) },
	}
	for _, more := range []map[string]plant{onEachDevice, onHost} {
		for kind, p := range more {
			plants[kind] = p
		}
	}
	for kind, p := range plants {
		t.Run(kind, func(t *testing.T) { found(t, open(), kind, p) })
	}
	require.Empty(t, reports(t, open(), func(d device.Device) error {
		return errors.Join(must(modules(d).LoadModule(ptx)).Close(), everythingClosed(d))
	}))
}

var ptx = []byte("PTX")

func modules(d device.Device) device.ModuleLoader { return d.(device.ModuleLoader) }
