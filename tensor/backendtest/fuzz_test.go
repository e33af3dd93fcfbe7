package backendtest

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// FuzzOperations lets the fuzzer choose the operation, the shapes and the numbers.
func FuzzOperations(f *testing.F) {
	fuzzTrials(f, forwardOps[float32](), forwardOps[float64]())
}

// FuzzGradients is FuzzOperations for gradients and optimisers.
func FuzzGradients(f *testing.F) {
	fuzzTrials(f, slices.Concat(gradientOps[float32](), stepOps[float32]()), slices.Concat(gradientOps[float64](), stepOps[float64]()))
}

func fuzzTrials(f *testing.F, singles []operation[float32], doubles []operation[float64]) {
	for i := range 2 * len(singles) {
		f.Add(uint8(i), []byte{byte(i), 3, 200, 17, 90, 255, 0, 128})
	}
	f.Fuzz(func(t *testing.T, op uint8, choices []byte) {
		r := newRig(t, 64<<20)
		r.few = true // go test gives an input 10 s, also on a busy machine
		source := reference.NewChoices(choices)
		if n := int(op) % (2 * len(singles)); n < len(singles) {
			runTrial(t, r, rand.New(source), singles[n])
		} else {
			runTrial(t, r, rand.New(source), doubles[n-len(singles)])
		}
	})
}
