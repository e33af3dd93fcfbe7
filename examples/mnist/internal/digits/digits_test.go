package digits

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The module's data is unpacked once for all tests, because that takes longer than most of them.
var (
	realTrain = sync.OnceValues(func() (*Set, error) { return Load(context.Background(), "", Train) })
	realTest  = sync.OnceValues(func() (*Set, error) { return Load(context.Background(), "", Test) })
)

// realData returns a part of the data set, which tests must not change.
func realData(t *testing.T, part Split) *Set {
	t.Helper()
	load := realTrain
	if part == Test {
		load = realTest
	}
	d, err := load()
	require.NoError(t, err)
	return d
}

// The module's data set is complete.
func TestDatasetOfTheModule(t *testing.T) {
	for s, want := range map[Split]int{Train: 60_000, Test: 10_000} {
		d := realData(t, s)
		require.Equal(t, want, d.Len())
		require.Len(t, d.Images, want*Pixels)

		var count [Classes]int
		for _, l := range d.Labels {
			count[l]++
		}
		for digit, n := range count {
			assert.InDelta(t, want/Classes, n, float64(want)/50, "digit %d", digit)
		}
		assert.Equal(t, Side, d.Image(want-1).Bounds().Dx())
	}
}

func TestFirstLabels(t *testing.T) {
	d := realData(t, Train)
	assert.Equal(t, []uint8{5, 0, 4, 1, 9, 2, 1, 3, 1, 4}, d.Labels[:10])
	var ink int
	for _, v := range d.Image(0) {
		ink += int(v)
	}
	assert.Equal(t, 27525, ink) // the sum of the first picture's Pixels
}
