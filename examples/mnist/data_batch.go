package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/cistern-ml/cistern/transfer"
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

// batcher cuts a data set into batches for a transfer.Loader.
type batcher struct {
	data *dataset
	size int // pictures in a batch
	// seed orders the pictures, differently in each epoch.
	seed uint64
	// inOrder leaves the pictures as they are, for tests.
	inOrder bool
	// whole leaves out what doesn't fill a batch at the end of an epoch.
	whole bool
}

// fields are the capacities in bytes of a batch's fields.
func (b batcher) fields() []int64 {
	return []int64{imageField: int64(b.size) * pixels * 4, labelField: int64(b.size) * 4}
}

// batches is the number of batches of an epoch.
func (b batcher) batches() int {
	if b.whole {
		return b.data.len() / b.size
	}
	return (b.data.len() + b.size - 1) / b.size
}

// epoch is the source of the batches of an epoch: the same ones for the same seed and number, on every
// machine.
func (b batcher) epoch(number int) transfer.Source {
	order := b.order(number)
	next, left := 0, b.batches()
	return func(_ context.Context, fields [][]byte) error {
		if left == 0 {
			return io.EOF
		}
		n := min(b.size, len(order)-next)
		images, err := transfer.View[float32](fields[imageField])
		if err != nil {
			return err
		}
		labels, err := transfer.View[int32](fields[labelField])
		if err != nil {
			return err
		}
		if len(images) < n*pixels || len(labels) < n {
			return fmt.Errorf("mnist: a batch of %d pictures needs %d and %d bytes, the loader's fields have %d and %d",
				n, n*pixels*4, n*4, len(fields[imageField]), len(fields[labelField]))
		}
		b.fill(images, labels, order[next:next+n])
		fields[imageField] = fields[imageField][:n*pixels*4]
		fields[labelField] = fields[labelField][:n*4]
		next += n
		left--
		return nil
	}
}

// order is the order of the pictures in an epoch.
func (b batcher) order(epoch int) []int32 {
	order := make([]int32, b.data.len())
	for i := range order {
		order[i] = int32(i)
	}
	if !b.inOrder {
		r := rand.New(rand.NewPCG(b.seed, uint64(epoch)))
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	return order
}

// fill writes the pictures that order names.
func (b batcher) fill(images []float32, labels []int32, order []int32) {
	for k, i := range order {
		from := b.data.image(int(i))
		to := images[k*pixels : (k+1)*pixels]
		for j, v := range from {
			to[j] = intensity[v]
		}
		labels[k] = int32(b.data.labels[i])
	}
}
