package forecasttest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/memcache/memtest"
	"github.com/cistern-ml/cistern/tensor"
)

// RequireMemory compares a program's memory at the peak of two steps on a dry device with a golden
// file, and requires that all of it is freed.
func RequireMemory(t *testing.T, device, file string, program forecast.Program) {
	t.Helper()
	SkipBits32(t)
	rt, err := tensor.Open(device)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	memtest.NoLeak(t, rt.Cache())
	memtest.Golden(t, rt.Cache(), file, func() {
		_, err := forecast.Measure(context.Background(), rt, program)
		require.NoError(t, err)
	})
}
