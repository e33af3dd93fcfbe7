package loader_test

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// TestPosition: a training that stops after any batch continues with the next one, across epochs.
func TestPosition(t *testing.T) {
	for _, drop := range []bool{false, true} {
		s := loader.Sampler{Samples: 10, Batch: 4, Fields: []int64{1}, Shuffle: true, Seed: 3, DropLast: drop}
		var seen []int
		read := func(_ context.Context, samples []int, _ [][]byte) error {
			seen = append(seen, samples...)
			return nil
		}
		var want []int
		for epoch := range 3 {
			want = append(want, s.Order(epoch)...)
		}
		var at loader.Position
		for range 3 * s.Batches() { // each batch by a program that begins where the last one stopped
			source, err := s.EpochFrom(at, read)
			require.NoError(t, err)
			require.NoError(t, source(t.Context(), [][]byte{make([]byte, 4)}))
			at = s.Next(at)
		}
		require.Equal(t, want, seen)
		require.Equal(t, loader.Position{Epoch: 3}, at)

		source, err := s.EpochFrom(loader.Position{Batch: s.Batches()}, read)
		require.NoError(t, err)
		require.Equal(t, io.EOF, source(t.Context(), [][]byte{make([]byte, 4)}))
		for _, wrong := range []loader.Position{{Epoch: -1}, {Batch: -1}, {Batch: s.Batches() + 1}} {
			_, err := s.EpochFrom(wrong, read)
			require.ErrorIs(t, err, transfer.ErrRange)
		}
		_, err = s.EpochFrom(at, nil)
		require.ErrorIs(t, err, transfer.ErrInvalid)
	}
}
