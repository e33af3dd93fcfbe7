package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestSeenOfAnotherShape is an error, also if it would broadcast.
func TestSeenOfAnotherShape(t *testing.T) {
	b := tapetest.Open(t, 16<<20)
	for _, shape := range [][]int{{4, 2, 1}, {1, 3, 1}, {1, 2, 5}, {2, 1, 2, 1}} {
		tape := autograd.NoGrad(b.Ctx, b.RT)
		zeros := func(shape ...int) *autograd.Variable {
			return autograd.Upload(tape, make([]float32, tapetest.Elements(shape)), shape...)
		}
		tape.Recurrent(autograd.Recurrence{Kind: tensor.GRU, X: zeros(1, 2, 2), WeightIH: zeros(6, 2), WeightHH: zeros(6, 2),
			Seen: autograd.Upload(tape, make([]uint8, tapetest.Elements(shape)), shape...)})
		assert.ErrorIs(t, tape.Err(), tensor.ErrShape, "%v", shape)
		_ = tape.Close()
	}
	live, _ := b.RT.Live()
	assert.Zero(t, live)
}
