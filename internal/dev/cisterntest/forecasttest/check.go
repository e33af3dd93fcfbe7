package forecasttest

import (
	"context"
	"encoding/json"
	"math/bits"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace/report"
)

// RequireForeseen compares a forecast with a run on the host device.
func RequireForeseen(t *testing.T, k Task, h How, batch int, what string) {
	t.Helper()
	SkipBits32(t)
	ctx, program := context.Background(), k.Program(h, batch)
	foreseen, err := forecast.Step(ctx, "dry:host?capacity=8GiB", program)
	require.NoError(t, err, what)
	require.True(t, foreseen.Fits)
	rt := open(t, h.offloaded)
	measured, err := forecast.Measure(ctx, rt, program)
	require.NoError(t, err, what)
	require.NoError(t, rt.Close())
	foreseen.Step.Start, foreseen.Step.HostTime = measured.Step.Start, measured.Step.HostTime
	// JSON omits call stacks.
	if want, got := toJSON(t, measured.Step), toJSON(t, foreseen.Step); want != got {
		require.Equal(t, strings.Split(want, "\n"), strings.Split(got, "\n"), what)
	}
	require.Equal(t, measured.AllocatedPeak, foreseen.AllocatedPeak, what)
	require.Equal(t, measured.ReservedPeak, foreseen.ReservedPeak, what)
	require.Positive(t, foreseen.PinnedPeak, what)
	require.Equal(t, measured.Lines, foreseen.Lines, what)
	require.Equal(t, measured.PeakLine, foreseen.PeakLine, what)
	require.ElementsMatch(t, weights(measured.Layers), weights(foreseen.Layers), what)
}

// SkipBits32 skips a test on 32 bits, where dry devices do not exist.
func SkipBits32(t *testing.T) {
	t.Helper()
	if bits.UintSize < 64 {
		t.Skip("dry devices need addresses of 64 bits")
	}
}

// weights returns the layers that hold memory, without the fields that a measurement lacks.
func weights(all []report.Layer) (some []report.Layer) {
	for _, l := range all {
		l.Output, l.Type = "", ""
		if l != (report.Layer{Name: l.Name}) {
			some = append(some, l)
		}
	}
	return some
}

// open opens a host device. If the memory of a step depends on the device's progress, it must be
// late, because memory then differs between runs on any other host device.
func open(t *testing.T, late bool) *tensor.Runtime {
	t.Helper()
	if !late {
		rt, err := tensor.Open("host?capacity=8GiB")
		require.NoError(t, err)
		return rt
	}
	below, err := host.New(host.Config{Capacity: 8 << 30})
	require.NoError(t, err)
	s := stacktest.New(t, stacktest.Config{Device: &lateDevice{Device: below, t: t, held: make(map[device.Stream]func())}})
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	return rt
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	require.NoError(t, err)
	return string(text)
}
