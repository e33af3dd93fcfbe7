package forecast_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/forecasttest"
)

// BenchmarkForecast makes forecasts of a transformer of 12 layers, 768 wide, on 8 sequences of 512
// tokens: of a step, and of the largest batch within 80 GiB.
func BenchmarkForecast(b *testing.B) {
	ctx, k := context.Background(), transformer(12, 12, 768, 512, 50304)
	b.Run("step", func(b *testing.B) {
		for b.Loop() {
			_, err := forecast.Step(ctx, "dry:cuda", k.Program(forecasttest.Plain, 8))
			require.NoError(b, err)
		}
	})
	b.Run("batch", func(b *testing.B) {
		for b.Loop() {
			n, _, err := forecast.LargestBatch(ctx, "dry:cuda", 80<<30, func(n int) forecast.Program {
				return k.Program(forecasttest.Plain, n)
			})
			require.NoError(b, err)
			b.ReportMetric(float64(n), "sequences")
		}
	})
}
