package main

import (
	"context"

	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// The fields of a batch.
const (
	imageField = iota // float32, pixels for each picture, 0 to 1
	labelField        // int32, one for each picture
)

// intensity is what a pixel counts: 0 to 1.
var intensity = func() (t [256]float32) {
	for i := range t {
		t[i] = float32(i) / 255
	}
	return t
}()

// batcher cuts a data set into batches for a loader.Loader.
type batcher struct {
	data *dataset
	size int // pictures in a batch
	// seed orders the pictures, differently in each epoch.
	seed uint64
	// inOrder leaves the pictures as they are, for tests.
	inOrder bool
	// rank of ranks has its part of the pictures; ranks of 0 is 1.
	rank, ranks int
}

func (b batcher) sampler() loader.Sampler {
	return loader.Sampler{
		Samples: b.data.len(), Batch: b.size, Fields: []int64{imageField: pixels * 4, labelField: 4},
		Shuffle: !b.inOrder, Seed: b.seed, Rank: b.rank, Ranks: b.ranks,
	}
}

// fields are the capacities in bytes of a batch's fields.
func (b batcher) fields() []int64 { return b.sampler().Capacities() }

// batches is the number of batches of an epoch.
func (b batcher) batches() int { return b.sampler().Batches() }

// epoch is the source of the batches of an epoch: the same ones for the same seed and number, on every
// machine.
func (b batcher) epoch(number int) loader.Source { return b.from(loader.Position{Epoch: number}) }

// from is epoch without the batches that were used.
func (b batcher) from(at loader.Position) loader.Source {
	source, err := b.sampler().EpochFrom(at, func(_ context.Context, samples []int, fields [][]byte) error {
		images, err := transfer.View[float32](fields[imageField])
		if err != nil {
			return err
		}
		labels, err := transfer.View[int32](fields[labelField])
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

// fill writes the pictures that order names.
func (b batcher) fill(images []float32, labels []int32, order []int) {
	for k, i := range order {
		from := b.data.image(i)
		to := images[k*pixels : (k+1)*pixels]
		for j, v := range from {
			to[j] = intensity[v]
		}
		labels[k] = int32(b.data.labels[i])
	}
}
