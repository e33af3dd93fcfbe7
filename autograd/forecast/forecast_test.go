package forecast_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/forecasttest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

func TestRandomModelsAreForeseen(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range tapetest.Rounds(10, 2) {
		k, batch := random(r), 1+r.IntN(100)
		for _, h := range forecasttest.Ways {
			forecasttest.RequireForeseen(t, k, h, batch, fmt.Sprintf("model %d, batch %d, %s", i, batch, h.Name))
		}
	}
}

func TestTransformerIsForeseen(t *testing.T) {
	for _, h := range forecasttest.Ways {
		for _, batch := range []int{1, 3, 8} {
			forecasttest.RequireForeseen(t, transformer(2, 2, 32, 24, 100), h, batch, fmt.Sprintf("%s, batch %d", h.Name, batch))
		}
	}
}
