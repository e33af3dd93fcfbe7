package loader_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// drain reads an epoch whose samples are their indices: one byte in field 0, two in field 1.
func drain(t *testing.T, s loader.Sampler, epoch int) (samples, sizes []int) {
	t.Helper()
	source, err := s.Epoch(epoch, func(_ context.Context, samples []int, fields [][]byte) error {
		for k, n := range samples {
			fields[0][k] = byte(n)
			copy(fields[1][2*k:], []byte{byte(n), byte(n >> 8)})
		}
		return nil
	})
	require.NoError(t, err)
	for {
		fields := [][]byte{make([]byte, s.Capacities()[0]), make([]byte, s.Capacities()[1])}
		err := source(t.Context(), fields)
		if err == io.EOF {
			require.Equal(t, io.EOF, source(t.Context(), fields), "it stays at the end")
			return samples, sizes
		}
		require.NoError(t, err)
		require.Len(t, fields[1], 2*len(fields[0]))
		for k, low := range fields[0] {
			require.Equal(t, low, fields[1][2*k])
			samples = append(samples, int(fields[1][2*k])|int(fields[1][2*k+1])<<8)
		}
		sizes = append(sizes, len(fields[0]))
	}
}

func TestSamplerHasEverySampleOnce(t *testing.T) {
	for _, n := range []int{1, 31, 32, 33, 1000} {
		for _, drop := range []bool{false, true} {
			t.Run(fmt.Sprint(n, " ", drop), func(t *testing.T) {
				s := loader.Sampler{Samples: n, Batch: 32, Fields: []int64{1, 2}, Shuffle: true, Seed: 1, DropLast: drop}
				samples, sizes := drain(t, s, 0)
				require.Len(t, sizes, s.Batches())
				want := n
				if drop {
					want = n / 32 * 32
				}
				require.Len(t, samples, want)
				slices.Sort(samples)
				require.Equal(t, samples, slices.Compact(slices.Clone(samples)))
				for i, size := range sizes {
					require.Equal(t, min(32, n-32*i), size)
				}
			})
		}
	}
}

func TestSamplerOrder(t *testing.T) {
	s := loader.Sampler{Samples: 500, Batch: 32, Fields: []int64{1, 2}, Shuffle: true, Seed: 1}
	first, _ := drain(t, s, 3)
	same, _ := drain(t, s, 3)
	require.Equal(t, first, same)
	other, _ := drain(t, s, 4)
	require.NotEqual(t, first, other)
	s.Seed = 2
	other, _ = drain(t, s, 3)
	require.NotEqual(t, first, other)
	s.Shuffle = false
	other, _ = drain(t, s, 3)
	require.True(t, slices.IsSorted(other))
	// The order must not change between versions, so that two runs can be compared.
	require.Equal(t, []int{3, 6, 9, 2, 7, 8, 4, 0, 5, 1}, loader.Sampler{Samples: 10, Batch: 1, Shuffle: true, Seed: 42}.Order(1))
}

func TestSamplerBadInput(t *testing.T) {
	read := func(context.Context, []int, [][]byte) error { return nil }
	for _, s := range []loader.Sampler{
		{}, {Samples: 1, Batch: 1}, {Samples: -1, Batch: 1, Fields: []int64{1}}, {Samples: 1, Batch: -1, Fields: []int64{1}},
		{Samples: 1, Batch: 1, Fields: []int64{0}}, {Samples: 1, Batch: math.MaxInt, Fields: []int64{1 << 40}},
		{Samples: 1, Batch: 2, Fields: []int64{1, -1}},
	} {
		_, err := s.Epoch(0, read)
		require.ErrorIs(t, err, transfer.ErrRange)
	}
	s := loader.Sampler{Samples: 4, Batch: 4, Fields: []int64{3136, 4}}
	source, err := s.Epoch(0, read)
	require.NoError(t, err)
	err = source(t.Context(), [][]byte{make([]byte, 4), make([]byte, 16)})
	require.ErrorIs(t, err, transfer.ErrRange)
	require.ErrorContains(t, err, "4 samples take 12544 bytes of field 0")
	require.ErrorIs(t, source(t.Context(), make([][]byte, 3)), transfer.ErrRange)
	failed := errors.New("no disk")
	source, err = s.Epoch(0, func(context.Context, []int, [][]byte) error { return failed })
	require.NoError(t, err)
	require.ErrorIs(t, source(t.Context(), [][]byte{make([]byte, 12544), make([]byte, 16)}), failed)
}

// Counts of batches and bytes are right or refused even for values that no data set has.
func TestSamplerOfHugeNumbers(t *testing.T) {
	for _, c := range []struct {
		samples, batch int
		drop           bool
		want           int
	}{
		{math.MaxInt, 1, false, math.MaxInt}, {math.MaxInt, 2, false, math.MaxInt/2 + 1}, {math.MaxInt, 2, true, math.MaxInt / 2},
		{math.MaxInt, math.MaxInt, false, 1}, {math.MaxInt, math.MaxInt, true, 1}, {math.MaxInt - 1, math.MaxInt, false, 1},
		{math.MaxInt - 1, math.MaxInt, true, 0}, {1, math.MaxInt, false, 1}, {0, 1, false, 0}, {-1, 1, false, 0},
		{math.MinInt, 1, false, 0}, {math.MinInt, 2, true, 0}, {7, 0, false, 0}, {7, -1, false, 0}, {7, math.MinInt, true, 0},
	} {
		s := loader.Sampler{Samples: c.samples, Batch: c.batch, DropLast: c.drop}
		require.Equal(t, c.want, s.Batches(), "%+v", c)
	}
	s := loader.Sampler{Batch: 4, Fields: []int64{3, 0, -1, math.MinInt64, math.MaxInt64 / 4, math.MaxInt64/4 + 1, math.MaxInt64}}
	require.Equal(t, []int64{12, 0, 0, 0, math.MaxInt64 / 4 * 4, math.MaxInt64, math.MaxInt64}, s.Capacities())
	for _, batch := range []int{0, -1, math.MinInt} {
		s.Batch = batch
		require.Equal(t, make([]int64, 7), s.Capacities())
	}
	r := newRig(t, transfer.Config{})
	for _, s := range []loader.Sampler{
		{Samples: 1, Batch: 1 << 10, Fields: []int64{1 << 60}}, {Samples: 1, Batch: 1 << 10, Fields: []int64{-1 << 60}},
	} {
		_, err := loader.New(t.Context(), r.pool, loader.Config{Cache: r.cache, Compute: r.a, Fields: s.Capacities()})
		require.ErrorIs(t, err, transfer.ErrRange)
	}
}

func TestSamplerRefusesWhatNoEpochCanHold(t *testing.T) {
	read := func(context.Context, []int, [][]byte) error { return nil }
	_, err := loader.Sampler{Samples: math.MaxInt, Batch: 2, Fields: []int64{1}}.Epoch(0, read)
	require.ErrorIs(t, err, transfer.ErrRange)
	_, err = loader.Sampler{Samples: 1, Batch: 1, Fields: []int64{1}}.Epoch(0, nil)
	require.ErrorIs(t, err, transfer.ErrInvalid)
}
