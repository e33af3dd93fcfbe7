package digits

import (
	"context"

	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// The fields of a batch.
const (
	ImageField = iota // float32, Pixels for each picture, 0 to 1
	LabelField        // int32, one for each picture
)

// Intensity maps a byte of a picture to 0 to 1.
var Intensity = func() (t [256]float32) {
	for i := range t {
		t[i] = float32(i) / 255
	}
	return t
}()

// Batches cuts a data set into batches for a loader.Loader.
type Batches struct {
	Data *Set
	// Size is the number of pictures in a batch.
	Size int
	// Seed shuffles the pictures, differently in each epoch.
	Seed uint64
	// InOrder turns shuffling off, for tests of a model.
	InOrder bool
	// Rank is the rank that reads its part of the pictures, and Ranks the number of ranks. 0 stands
	// for 1.
	Rank, Ranks int
}

// Sampler orders the pictures.
func (b Batches) Sampler() loader.Sampler {
	return loader.Sampler{
		Samples: b.Data.Len(), Batch: b.Size, Fields: []int64{ImageField: Pixels * 4, LabelField: 4},
		Shuffle: !b.InOrder, Seed: b.Seed, Rank: b.Rank, Ranks: b.Ranks,
	}
}

// Fields returns the capacities of a batch's fields in bytes.
func (b Batches) Fields() []int64 { return b.Sampler().Capacities() }

// Count returns the number of batches in an epoch.
func (b Batches) Count() int { return b.Sampler().Batches() }

// Epoch returns the source of the batches of an epoch. The same seed and number give the same
// batches on every machine.
func (b Batches) Epoch(number int) loader.Source { return b.From(loader.Position{Epoch: number}) }

// From returns the source of an epoch's batches from a position on.
func (b Batches) From(at loader.Position) loader.Source {
	source, err := b.Sampler().EpochFrom(at, func(_ context.Context, samples []int, fields [][]byte) error {
		images, err := transfer.View[float32](fields[ImageField])
		if err != nil {
			return err
		}
		labels, err := transfer.View[int32](fields[LabelField])
		if err != nil {
			return err
		}
		b.fill(images, labels, samples)
		return nil
	})
	if err != nil {
		return func(context.Context, [][]byte) error { return err } // Next returns it
	}
	return source
}

// fill writes the pictures and labels with the numbers of order.
func (b Batches) fill(images []float32, labels []int32, order []int) {
	for k, i := range order {
		from := b.Data.Image(i)
		to := images[k*Pixels : (k+1)*Pixels]
		for j, v := range from {
			to[j] = Intensity[v]
		}
		labels[k] = int32(b.Data.Labels[i])
	}
}
