package tensor

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDropoutOfKnownNumbers: the first random numbers of Philox with a counter and a key of 0 are
// published; they are 0.399, 0.880, 0.736 and 0.605 of 2^32.
func TestDropoutOfKnownNumbers(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, []float64{1, 2, 3, 4, 5})
	for p, left := range map[float64][]float64{0.39: {1, 2, 3, 4}, 0.4: {0, 2, 3, 4}, 0.61: {0, 2, 3, 0}, 0.74: {0, 2, 0, 0}, 0.89: {0, 0, 0, 0}} {
		y, err := r.Dropout(r.ctx, nil, x, p, Random{})
		for i, v := range get[float64](r, y, err)[:4] {
			assert.Equal(t, left[i]*(1/(1-p)), v, "%v, element %d", p, i)
		}
	}
	_, err := r.Dropout(r.ctx, nil, x, 1.5, Random{})
	require.ErrorIs(t, err, ErrInvalid)
}
