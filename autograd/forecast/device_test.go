package forecast_test

import (
	"fmt"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/forecasttest"
)

func TestDeviceIsForeseen(t *testing.T) {
	for i, k := range []forecasttest.Task{transformer(2, 2, 32, 24, 100), transformer(3, 4, 128, 64, 1000)} {
		for _, h := range forecasttest.Ways {
			for _, batch := range []int{1, 3, 8} {
				forecasttest.RequireForeseenOnDevice(t, k, h, batch, fmt.Sprintf("transformer %d, %s, batch %d", i, h.Name, batch))
			}
		}
	}
}

func TestDeviceTakesTheLargestBatch(t *testing.T) {
	k := transformer(12, 12, 768, 512, 50304)
	for _, h := range []forecasttest.How{forecasttest.Plain, forecasttest.BFloat16, forecasttest.Checkpointed} {
		forecasttest.RequireLargestBatch(t, k, h, 8<<30)
	}
}
