package loader_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// TestBatcherReleases: a batch is released after the body of the loop, even after a break or a
// panic, and the body may release it.
func TestBatcherReleases(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b, l := open(t, r, labels(40), loader.BatcherConfig[int32]{Sampler: loader.Sampler{Batch: 4}})
	for _, body := range []func(*loader.Minibatch) bool{
		func(*loader.Minibatch) bool { return true },
		func(*loader.Minibatch) bool { return false },
		func(batch *loader.Minibatch) bool { return batch.Release() == nil },
		func(*loader.Minibatch) bool { panic("of the body") },
	} {
		var used []*loader.Minibatch
		func() {
			defer func() {
				if v := recover(); v != nil {
					require.Equal(t, "of the body", v)
				}
			}()
			for batch, err := range b.From(t.Context(), l, loader.Position{}) {
				require.NoError(t, err)
				if used = append(used, batch); !body(batch) {
					break
				}
			}
		}()
		require.NotEmpty(t, used)
		for _, batch := range used {
			require.ErrorIs(t, batch.Release(), transfer.ErrReleased)
		}
	}
}

// TestBatcherFrom: an epoch continues after the batches that were used, and its end is also a valid
// position.
func TestBatcherFrom(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b, l := open(t, r, labels(23), loader.BatcherConfig[int32]{Sampler: loader.Sampler{Batch: 4, Shuffle: true, Seed: 5}, Workers: 3})
	whole := epoch[int32](t, r, b, l, loader.Position{Epoch: 2})
	require.Len(t, whole, 6)
	for k := range whole {
		require.Equal(t, whole[k:], epoch[int32](t, r, b, l, loader.Position{Epoch: 2, Batch: k}))
	}
	require.Empty(t, epoch[int32](t, r, b, l, loader.Position{Batch: 6}))
	for _, at := range []loader.Position{{Batch: 7}, {Batch: -1}, {Epoch: -1}} {
		for _, err := range b.From(t.Context(), l, at) {
			require.ErrorIs(t, err, transfer.ErrRange)
		}
	}
	for _, err := range (*loader.Batcher[int32])(nil).From(t.Context(), l, loader.Position{}) {
		require.ErrorIs(t, err, transfer.ErrInvalid)
	}
	for _, err := range b.From(t.Context(), nil, loader.Position{}) {
		require.ErrorIs(t, err, transfer.ErrInvalid)
	}
}

// TestBatcherInside: an epoch inside of another one on the same loader ends the outer one with an
// error, not as if it were complete.
func TestBatcherInside(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b, l := open(t, r, labels(12), loader.BatcherConfig[int32]{Sampler: loader.Sampler{Batch: 3}})
	var ends []error
	for _, err := range b.From(t.Context(), l, loader.Position{}) {
		if ends = append(ends, err); err == nil {
			require.Equal(t, [][]int32{{9, 10, 11}}, epoch[int32](t, r, b, l, loader.Position{Batch: 3}))
		}
	}
	require.Len(t, ends, 2)
	require.ErrorIs(t, ends[1], transfer.ErrInvalid)
}

// TestBatcherConfig: an error of NewBatcher includes the invalid values.
func TestBatcherConfig(t *testing.T) {
	make := func(data loader.Dataset[int32], workers int, s loader.Sampler) error {
		_, err := loader.NewBatcher(data, loader.BatcherConfig[int32]{Sampler: s, Workers: workers})
		return err
	}
	require.NoError(t, make(labels(5), 1024, loader.Sampler{Batch: 5, Samples: 5, DropLast: true}))
	require.NoError(t, make(labels(1), 0, loader.Sampler{Batch: 2}))
	require.ErrorIs(t, make(nil, 1, loader.Sampler{Batch: 1}), transfer.ErrInvalid)
	for want, err := range map[string]error{
		"-1 workers":           make(labels(5), -1, loader.Sampler{Batch: 1}),
		"1025 workers":         make(labels(5), 1025, loader.Sampler{Batch: 1}),
		"0 samples":            make(labels(0), 1, loader.Sampler{Batch: 1}),
		"-3 samples":           make(labels(-3), 1, loader.Sampler{Batch: 1}),
		"batches of 0":         make(labels(5), 1, loader.Sampler{}),
		"rank 2 of 2":          make(labels(5), 1, loader.Sampler{Batch: 1, Rank: 2, Ranks: 2}),
		"4 samples, the":       make(labels(5), 1, loader.Sampler{Batch: 1, Samples: 4}),
		"fill no batch of 6":   make(labels(5), 1, loader.Sampler{Batch: 6, DropLast: true}),
		"of rank 1 of 3 fill ": make(labels(5), 1, loader.Sampler{Batch: 2, DropLast: true, Rank: 1, Ranks: 3}),
	} {
		require.ErrorContains(t, err, want)
		require.ErrorIs(t, err, transfer.ErrRange, want)
	}
	bad := errors.New("bad")
	_, err := loader.NewBatcher(numbered[int32]{3, func(i int) (int32, error) { return 0, bad }}, loader.BatcherConfig[int32]{Sampler: loader.Sampler{Batch: 1}})
	require.ErrorIs(t, err, bad)
	require.ErrorContains(t, err, "sample 0")
	_, err = loader.NewBatcher(numbered[string]{3, nil}, loader.BatcherConfig[string]{
		Sampler: loader.Sampler{Batch: 1}, Collate: func([]string, [][]byte) error { return nil },
	})
	require.ErrorContains(t, err, "0 fields", "what Collate writes can't be guessed")
}

// TestParallelBatcher: the k-th batches of all ranks together are the k-th batch of a single rank
// with a batch that many times larger.
func TestParallelBatcher(t *testing.T) {
	const ranks = 3
	r := newRig(t, transfer.Config{})
	all := func(s loader.Sampler) (batches [][]int32) {
		b, l := open(t, r, labels(36), loader.BatcherConfig[int32]{Sampler: s, Workers: 4})
		batches = epoch[int32](t, r, b, l, loader.Position{Epoch: 1})
		require.NoError(t, l.Close())
		return batches
	}
	want := all(loader.Sampler{Batch: 4 * ranks, Shuffle: true})
	together := make([][]int32, len(want))
	for rank := range ranks {
		for k, part := range all(loader.Sampler{Batch: 4, Shuffle: true, Rank: rank, Ranks: ranks}) {
			together[k] = append(together[k], part...)
		}
	}
	for k := range want {
		slices.Sort(want[k])
		slices.Sort(together[k])
	}
	require.Equal(t, want, together)
}
