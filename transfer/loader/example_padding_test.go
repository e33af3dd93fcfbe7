package loader_test

import (
	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// texts is a data set of sequences of tokens.
type texts [][]int32

func (t texts) Len() int                  { return len(t) }
func (t texts) At(i int) ([]int32, error) { return t[i], nil }

const longest = 8 // tokens

// pad makes sequences as long as the longest of the batch, with zeros.
func pad(samples [][]int32, fields [][]byte) error {
	width := 0
	for _, s := range samples {
		width = max(width, len(s))
	}
	fields[0] = fields[0][:4*width*len(samples)]
	tokens, err := transfer.View[int32](fields[0])
	for k, s := range samples {
		row := tokens[k*width : (k+1)*width]
		clear(row[copy(row, s):])
	}
	return err
}

func ExampleBatcher_padding() {
	data := texts{{1, 2, 3}, {4}, {5, 6}, {7, 8, 9, 10, 11}, {12}}
	batches, err := loader.NewBatcher(data, loader.BatcherConfig[[]int32]{
		Sampler: loader.Sampler{Batch: 2, Fields: []int64{4 * longest}}, Collate: pad,
	})
	check(err)
	check(show[int32](batches, 0, "%d\n"))
	// Output:
	// [1 2 3 4 0 0]
	// [5 6 0 0 0 7 8 9 10 11]
	// [12]
}
