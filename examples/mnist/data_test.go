package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The data set itself, as the module brings it.
func TestDatasetOfTheModule(t *testing.T) {
	for s, want := range map[split]int{train: 60_000, test: 10_000} {
		d, err := loadDataset(t.Context(), "", s)
		require.NoError(t, err)
		require.Equal(t, want, d.len())
		require.Len(t, d.images, want*pixels)

		var count [classes]int
		for _, l := range d.labels {
			count[l]++
		}
		for digit, n := range count {
			assert.InDelta(t, want/classes, n, float64(want)/50, "digit %d", digit)
		}
		assert.Equal(t, side, d.image(want-1).Bounds().Dx())
	}
}

func TestFirstLabels(t *testing.T) {
	d, err := loadDataset(t.Context(), "", train)
	require.NoError(t, err)
	assert.Equal(t, []uint8{5, 0, 4, 1, 9, 2, 1, 3, 1, 4}, d.labels[:10])
	var ink int
	for _, v := range d.image(0) {
		ink += int(v)
	}
	assert.Equal(t, 27525, ink) // the sum of the first picture's pixels
}
