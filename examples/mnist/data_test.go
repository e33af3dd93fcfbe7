package main

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What the module brings is unpacked once for all tests: it takes longer than most of them.
var (
	realTrain = sync.OnceValues(func() (*dataset, error) { return loadDataset(context.Background(), "", train) })
	realTest  = sync.OnceValues(func() (*dataset, error) { return loadDataset(context.Background(), "", test) })
)

// realData is a part of the data set, which tests only read.
func realData(t *testing.T, part split) *dataset {
	t.Helper()
	load := realTrain
	if part == test {
		load = realTest
	}
	d, err := load()
	require.NoError(t, err)
	return d
}

// The data set itself, as the module brings it.
func TestDatasetOfTheModule(t *testing.T) {
	for s, want := range map[split]int{train: 60_000, test: 10_000} {
		d := realData(t, s)
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
	d := realData(t, train)
	assert.Equal(t, []uint8{5, 0, 4, 1, 9, 2, 1, 3, 1, 4}, d.labels[:10])
	var ink int
	for _, v := range d.image(0) {
		ink += int(v)
	}
	assert.Equal(t, 27525, ink) // the sum of the first picture's pixels
}
