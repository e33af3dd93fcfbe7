package digits

import (
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
)

// numbered returns a data set in which each picture contains its number.
func numbered(n int) *Set {
	d := &Set{Images: make([]byte, n*Pixels), Labels: make([]uint8, n)}
	for i := range n {
		d.Labels[i] = uint8(i % Classes)
		d.Images[i*Pixels], d.Images[i*Pixels+1] = byte(i), byte(i>>8)
	}
	return d
}

func which(picture []float32) int {
	return int(picture[0]*255+0.5) + int(picture[1]*255+0.5)<<8
}

// read returns the numbers of the pictures in an epoch.
func read(t *testing.T, b Batches, epoch int) (numbers []int, sizes []int) {
	t.Helper()
	source := b.Epoch(epoch)
	memory := make([]float32, b.Size*Pixels)
	for {
		fields := [][]byte{make([]byte, b.Fields()[ImageField]), make([]byte, b.Fields()[LabelField])}
		err := source(t.Context(), fields)
		if err == io.EOF {
			return numbers, sizes
		}
		require.NoError(t, err)
		images, err := transfer.View[float32](fields[ImageField])
		require.NoError(t, err)
		labels, err := transfer.View[int32](fields[LabelField])
		require.NoError(t, err)
		require.Len(t, images, len(labels)*Pixels)
		copy(memory, images)
		for i, l := range labels {
			n := which(images[i*Pixels:])
			require.EqualValues(t, n%Classes, l)
			numbers = append(numbers, n)
		}
		sizes = append(sizes, len(labels))
	}
}

func TestAnEpochHasEveryPictureOnce(t *testing.T) {
	for _, n := range []int{1, 31, 32, 33, 1000} {
		b := Batches{Data: numbered(n), Size: 32, Seed: 1}
		numbers, sizes := read(t, b, 0)
		assert.Len(t, sizes, b.Count())
		slices.Sort(numbers)
		for i, v := range numbers {
			require.Equal(t, i, v)
		}
		assert.Len(t, numbers, n)
	}
}

func TestIntensity(t *testing.T) {
	assert.Equal(t, float32(0), Intensity[0])
	assert.Equal(t, float32(1), Intensity[255])
	assert.InDelta(t, 0.5, Intensity[127], 0.002)
}

func BenchmarkFill(b *testing.B) {
	source := Batches{Data: numbered(1024), Size: 128, Seed: 1}
	images, labels := make([]float32, 128*Pixels), make([]int32, 128)
	order := source.Sampler().Order(0)
	b.SetBytes(128 * Pixels * 4)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		source.fill(images, labels, order[i%8*128:i%8*128+128])
	}
}
