package forecast_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/forecasttest"
	"github.com/cistern-ml/cistern/trace/report"
)

// TestLayers: figures that can be computed by hand. A block is a multiple of 512 bytes.
func TestLayers(t *testing.T) {
	f, err := forecast.Step(context.Background(), "dry:host", training(64))
	require.NoError(t, err)
	require.Len(t, f.Layers, 3, "the model, and two layers; the ReLU is part of the first one")
	round := func(floats int64) int64 { return (4*floats + 511) / 512 * 512 }
	first, last := f.Layers[1], f.Layers[2]
	require.Equal(t, report.Layer{Name: "0", Type: "Linear", Output: "float32[64,4096]", Parameters: 784*4096 + 4096,
		ParameterBytes: round(784*4096) + round(4096), ActivationBytes: round(64 * 4096), GradientBytes: first.GradientBytes,
		StateBytes: 2 * first.ParameterBytes, WorkspaceBytes: first.WorkspaceBytes}, first)
	require.GreaterOrEqual(t, first.GradientBytes, first.ParameterBytes)
	require.Equal(t, "float32[64,10]", last.Output)
	require.Equal(t, 4096*10+10, last.Parameters)
	require.Equal(t, round(64*10), last.ActivationBytes)
	require.Equal(t, "float32[]", f.Layers[0].Output, "the loss")
	var table strings.Builder
	require.NoError(t, f.Table(&table))
	require.Contains(t, table.String(), "0 Linear")
	require.Contains(t, table.String(), "own parameters") // without those of the layers inside
	require.Contains(t, table.String(), "3,256,330")      // all parameters
}

// TestLines: the lines hold all memory at the peak, even if the peak is at the start of the step.
func TestLines(t *testing.T) {
	ctx := context.Background()
	f, err := forecast.Step(ctx, "dry:host", training(64))
	require.NoError(t, err)
	require.Contains(t, f.PeakLine.Function, "training")
	require.Positive(t, f.PeakLine.Bytes)
	replayed, err := forecast.Step(ctx, "dry:host", transformer(1, 1, 4, 4, 8).Program(forecasttest.Captured, 2))
	require.NoError(t, err)
	require.Zero(t, replayed.Step.Allocations)
	for _, f := range []*forecast.Forecast{f, replayed} {
		sum, blocks, of := int64(0), 0, 0
		for _, l := range f.Lines {
			sum += l.Bytes
			blocks += l.Blocks
			require.True(t, strings.HasSuffix(l.File, "_test.go") || strings.HasSuffix(l.File, "task.go"), l.File)
		}
		for _, c := range f.Step.Peak.Categories {
			of += c.Blocks
		}
		require.Equal(t, f.Step.AllocatedPeak, sum)
		require.Equal(t, of, blocks)
	}
}
