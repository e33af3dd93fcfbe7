package forecasttest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// RequireForeseenOnDevice compares a forecast with the GPU in CISTERN_TEST_DEVICE, or the emulated
// one, and prints both. The memory of offloading depends there on when copies end. The forecast is
// the maximum of the allocated bytes. The reserved bytes can be more: a block that is free sooner
// can go to a smaller request, and a large request then needs a new segment.
func RequireForeseenOnDevice(t *testing.T, k Task, h How, batch int, what string) {
	t.Helper()
	ctx, name := context.Background(), onGPU(t)
	runs := 1
	if h.offloaded && name != emulated {
		runs = 10
	}
	var foreseen *forecast.Forecast
	for range runs {
		rt, err := tensor.Open(name)
		require.NoError(t, err)
		if foreseen == nil {
			what += ", " + dryOf(t, rt)
			foreseen, err = forecast.Step(ctx, dryOf(t, rt), k.Program(h, batch))
			require.NoError(t, err, what)
		}
		measured, err := forecast.Measure(ctx, rt, k.Program(h, batch))
		require.NoError(t, err, what)
		require.NoError(t, rt.Close())
		t.Logf("%s: foreseen %d allocated, %d reserved; measured %d allocated, %d reserved", what,
			foreseen.AllocatedPeak, foreseen.ReservedPeak, measured.AllocatedPeak, measured.ReservedPeak)
		if h.offloaded {
			require.LessOrEqual(t, measured.AllocatedPeak, foreseen.AllocatedPeak, what)
			continue
		}
		require.Equal(t, measured.AllocatedPeak, foreseen.AllocatedPeak, what)
		require.Equal(t, measured.ReservedPeak, foreseen.ReservedPeak, what)
		require.Equal(t, measured.Step.Peak, foreseen.Step.Peak, what)
	}
}

// RequireLargestBatch shows on the device that the foreseen batch fits in limit bytes, and that one
// more does not.
func RequireLargestBatch(t *testing.T, k Task, h How, limit int64) {
	t.Helper()
	ctx, name := context.Background(), onGPU(t)
	open := func() *tensor.Runtime {
		rt, err := tensor.Open(name, tensor.CacheConfig(memcache.Config{MemoryLimit: limit}))
		require.NoError(t, err)
		return rt
	}
	rt := open()
	if rt.Device().Name() == emulated {
		require.NoError(t, rt.Close())
		t.Skip("it is slow")
	}
	n, foreseen, err := forecast.LargestBatch(ctx, dryOf(t, rt), limit, func(batch int) forecast.Program { return k.Program(h, batch) })
	require.NoError(t, err)
	measured, err := forecast.Measure(ctx, rt, k.Program(h, n))
	require.NoError(t, err, "a batch of %d", n)
	require.NoError(t, rt.Close())
	t.Logf("%d bytes, %s: a batch of %d foreseen with %d reserved, measured with %d", limit, h.Name, n, foreseen.ReservedPeak, measured.ReservedPeak)
	rt = open()
	_, err = forecast.Measure(ctx, rt, k.Program(h, n+1))
	require.ErrorIs(t, err, memcache.ErrOutOfMemory, "a batch of %d", n+1)
	t.Logf("a batch of %d: %v", n+1, err)
	_ = rt.Close() // the program's error is returned again
}

// emulated is the name of the device of the emulator.
const emulated = "emulated"

func onGPU(t *testing.T) string {
	t.Helper()
	name := cisterntest.Named()
	if name == "" || strings.HasPrefix(name, "host") {
		t.Skip("it compares with the GPU that CISTERN_TEST_DEVICE names")
	}
	return name
}

// dryOf returns the dry device for the runtime's device. The emulated one has no library of
// products.
func dryOf(t *testing.T, rt *tensor.Runtime) string {
	t.Helper()
	props := rt.Device().Properties()
	dry := fmt.Sprintf("dry:cuda?capacity=%d", props.TotalMemory)
	if rt.Device().Name() == emulated {
		return dry + "&cublas=none"
	}
	known := []string{"A100", "H100", "H200", "L4", "T4"}
	i := slices.IndexFunc(known, func(gpu string) bool { return strings.Contains(props.Model, gpu) })
	if i < 0 {
		t.Skipf("%s is not in the table", props.Model)
	}
	return dry + "&gpu=" + known[i]
}
