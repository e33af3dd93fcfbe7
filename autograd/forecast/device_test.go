package forecast_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/forecasttest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestDeviceIsForeseen compares with the GPU that CISTERN_TEST_DEVICE names, or the emulated one,
// which has no library of products. What offloading takes there differs from run to run.
func TestDeviceIsForeseen(t *testing.T) {
	name := cisterntest.Named()
	if name == "" || strings.HasPrefix(name, "host") {
		t.Skip("it compares with the GPU that CISTERN_TEST_DEVICE names")
	}
	ctx := context.Background()
	tasks := []forecasttest.Task{transformer(2, 2, 32, 24, 100), transformer(3, 4, 128, 64, 1000)}
	batches := []int{1, 8}
	for i, k := range tasks {
		for _, h := range forecasttest.Ways {
			for _, batch := range batches {
				rt, err := tensor.Open(name)
				require.NoError(t, err)
				dry := dryOf(t, rt)
				what := fmt.Sprintf("transformer %d, %s, batch %d, %s", i, h.Name, batch, dry)
				foreseen, err := forecast.Step(ctx, dry, k.Program(h, batch))
				require.NoError(t, err, what)
				measured, err := forecast.Measure(ctx, rt, k.Program(h, batch))
				require.NoError(t, err, what)
				require.NoError(t, rt.Close())
				t.Logf("%s: foreseen %d allocated, %d reserved; measured %d allocated, %d reserved", what,
					foreseen.AllocatedPeak, foreseen.ReservedPeak, measured.AllocatedPeak, measured.ReservedPeak)
				if h.Name == forecasttest.Offloaded.Name {
					continue
				}
				require.Equal(t, measured.AllocatedPeak, foreseen.AllocatedPeak, what)
				require.Equal(t, measured.ReservedPeak, foreseen.ReservedPeak, what)
				require.Equal(t, measured.Step.Peak, foreseen.Step.Peak, what)
			}
		}
	}
}

// dryOf is the dry device that stands for the runtime's.
func dryOf(t *testing.T, rt *tensor.Runtime) string {
	t.Helper()
	props := rt.Device().Properties()
	dry := fmt.Sprintf("dry:cuda?capacity=%d", props.TotalMemory)
	if rt.Device().Name() == "emulated" {
		return dry + "&cublas=none"
	}
	known := []string{"A100", "H100", "H200", "L4", "T4"}
	i := slices.IndexFunc(known, func(gpu string) bool { return strings.Contains(props.Model, gpu) })
	if i < 0 {
		t.Skipf("%s is not in the table", props.Model)
	}
	return dry + "&gpu=" + known[i]
}
