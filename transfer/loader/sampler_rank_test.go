package loader_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// distributed is torch.utils.data.DistributedSampler's code, line by line.
func distributed(indices []int, rank, ranks int, dropLast bool) []int {
	indices = slices.Clone(indices)
	n := (len(indices) + ranks - 1) / ranks
	if dropLast && len(indices)%ranks != 0 {
		n = (len(indices) - ranks + ranks - 1) / ranks
	}
	total := n * ranks
	if !dropLast {
		first := slices.Clone(indices)
		for len(indices) < total {
			indices = append(indices, first[:min(len(first), total-len(indices))]...)
		}
	} else {
		indices = indices[:total]
	}
	var mine []int
	for i := rank; i < total; i += ranks {
		mine = append(mine, indices[i])
	}
	return mine
}

// TestParallelSampler: each rank gets the samples that PyTorch gives it, from an order that is the
// same on all ranks.
func TestParallelSampler(t *testing.T) {
	for _, samples := range []int{1, 2, 3, 7, 64, 97, 1000} {
		for ranks := 1; ranks <= 5; ranks++ {
			for _, drop := range []bool{false, true} {
				name := fmt.Sprintf("%d samples, %d ranks, drop %v", samples, ranks, drop)
				whole := loader.Sampler{Samples: samples, Batch: 1, Fields: []int64{1, 2}, Shuffle: true, Seed: 9}.Order(4)
				for rank := range ranks {
					s := loader.Sampler{Samples: samples, Batch: 5, Fields: []int64{1, 2}, Shuffle: true, Seed: 9, DropLast: drop, Rank: rank, Ranks: ranks}
					want := distributed(whole, rank, ranks, drop)
					batches := (len(want) + 4) / 5
					if drop {
						batches = len(want) / 5
						want = want[:batches*5]
					}
					require.Equal(t, batches, s.Batches(), name)
					got, sizes := drain(t, s, 4)
					require.Len(t, sizes, batches, name)
					require.True(t, slices.Equal(want, got), "%s: %v, want %v", name, got, want)
					require.True(t, slices.Equal(want, s.Order(4)), name)
				}
			}
		}
	}
}

// TestParallelSamplerBatches: the k-th batches of all ranks together are the k-th batch of one
// rank.
func TestParallelSamplerBatches(t *testing.T) {
	for _, ranks := range []int{2, 3, 4} {
		one := loader.Sampler{Samples: 240, Batch: 24, Fields: []int64{1, 2}, Shuffle: true, Seed: 3}.Order(1)
		for k := range 10 {
			var together []int
			for rank := range ranks {
				s := loader.Sampler{Samples: 240, Batch: 24 / ranks, Fields: []int64{1, 2}, Shuffle: true, Seed: 3, Rank: rank, Ranks: ranks}
				require.Equal(t, 10, s.Batches())
				together = append(together, s.Order(1)[k*24/ranks:][:24/ranks]...)
			}
			require.ElementsMatch(t, one[k*24:][:24], together)
		}
	}
}

// TestParallelSamplerOfManyRanks: more ranks than samples are not an error, and no sum overflows.
func TestParallelSamplerOfManyRanks(t *testing.T) {
	s := loader.Sampler{Samples: 3, Batch: 2, Fields: []int64{1, 2}, Rank: math.MaxInt - 1, Ranks: math.MaxInt}
	require.Equal(t, []int{(math.MaxInt - 1) % 3}, s.Order(0))
	s.DropLast = true
	require.Empty(t, s.Order(0))
	require.Zero(t, s.Batches())
}

// TestParallelSamplerRefuses: invalid ranks are refused.
func TestParallelSamplerRefuses(t *testing.T) {
	for _, c := range [][2]int{{1, 0}, {1, 1}, {-1, 2}, {2, 2}, {0, -1}, {0, math.MinInt}} {
		s := loader.Sampler{Samples: 9, Batch: 2, Fields: []int64{1}, Rank: c[0], Ranks: c[1]}
		_, err := s.Epoch(0, nil)
		require.ErrorIs(t, err, transfer.ErrRange)
		require.ErrorContains(t, err, fmt.Sprintf("rank %d of %d", c[0], c[1]))
		require.Nil(t, s.Order(0))
	}
}
