package forecast_test

import (
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/forecasttest"
)

// TestMemory compares the memory of a transformer of 12 layers, 768 wide, with golden files for an
// H100 and 8 sequences of 512 tokens.
func TestMemory(t *testing.T) {
	k := transformer(12, 12, 768, 512, 50304)
	for _, h := range forecasttest.Ways {
		t.Run(h.Name, func(t *testing.T) {
			forecasttest.RequireMemory(t, "dry:cuda?gpu=H100", "testdata/memory/transformer_"+h.Name+".txt", k.Program(h, 8))
		})
	}
}
