package main

import (
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
)

// numbered is a data set in which every picture says which one it is.
func numbered(n int) *dataset {
	d := &dataset{images: make([]byte, n*pixels), labels: make([]uint8, n)}
	for i := range n {
		d.labels[i] = uint8(i % classes)
		d.images[i*pixels], d.images[i*pixels+1] = byte(i), byte(i>>8)
	}
	return d
}

func which(picture []float32) int {
	return int(picture[0]*255+0.5) + int(picture[1]*255+0.5)<<8
}

// read collects the pictures' numbers in an epoch.
func read(t *testing.T, b batcher, epoch int) (numbers []int, sizes []int) {
	t.Helper()
	source := b.epoch(epoch)
	memory := make([]float32, b.size*pixels)
	for {
		fields := [][]byte{make([]byte, b.fields()[imageField]), make([]byte, b.fields()[labelField])}
		err := source(t.Context(), fields)
		if err == io.EOF {
			return numbers, sizes
		}
		require.NoError(t, err)
		images, err := transfer.View[float32](fields[imageField])
		require.NoError(t, err)
		labels, err := transfer.View[int32](fields[labelField])
		require.NoError(t, err)
		require.Len(t, images, len(labels)*pixels)
		copy(memory, images)
		for i, l := range labels {
			n := which(images[i*pixels:])
			require.EqualValues(t, n%classes, l)
			numbers = append(numbers, n)
		}
		sizes = append(sizes, len(labels))
	}
}

func TestAnEpochHasEveryPictureOnce(t *testing.T) {
	for _, n := range []int{1, 31, 32, 33, 1000} {
		b := batcher{data: numbered(n), size: 32, seed: 1}
		numbers, sizes := read(t, b, 0)
		assert.Len(t, sizes, b.batches())
		slices.Sort(numbers)
		for i, v := range numbers {
			require.Equal(t, i, v)
		}
		assert.Len(t, numbers, n)
	}
}

func TestIntensity(t *testing.T) {
	assert.Equal(t, float32(0), intensity[0])
	assert.Equal(t, float32(1), intensity[255])
	assert.InDelta(t, 0.5, intensity[127], 0.002)
}

func BenchmarkFill(b *testing.B) {
	source := batcher{data: numbered(1024), size: 128, seed: 1}
	images, labels := make([]float32, 128*pixels), make([]int32, 128)
	order := source.sampler().Order(0)
	b.SetBytes(128 * pixels * 4)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		source.fill(images, labels, order[i%8*128:i%8*128+128])
	}
}
