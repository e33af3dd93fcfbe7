package placement

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTakeExcess: it takes whole ages, the oldest first, and only a part of the youngest: as few
// chunks as are enough, and as the last one the smallest that is.
func TestTakeExcess(t *testing.T) {
	parts := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 9))
		rules := &Rules{MaxSplit: 1 << 62, LargeSegment: 20 << 20, Granule: 2 << 20}
		a, _ := holes(r, rules)
		var all int64
		candidates := a.Releasable(nil, Large)
		for _, c := range candidates {
			require.True(t, c.Chunk.Whole())
			require.Equal(t, c.Chunk.size, c.Bytes)
			c.Chunk.freeSince = r.Int64N(4)
			all += c.Bytes
		}
		want := slices.Clone(candidates)
		excess := r.Int64N(all + all/8)
		got, missing := TakeExcess(candidates, excess)
		require.Equal(t, max(0, excess-all), missing)
		taken := make(map[*Chunk]bool)
		var sum int64
		for _, m := range got {
			require.False(t, m.Free(), "it is taken out")
			taken[m] = true
			sum += m.size
		}
		if missing > 0 {
			require.Len(t, got, len(want))
			continue
		}
		require.GreaterOrEqual(t, sum, excess)
		if len(got) == 0 {
			require.Zero(t, excess)
			continue
		}
		// Of the ages before the last one everything is taken, and of those after it nothing.
		last := got[len(got)-1].freeSince
		need := excess
		var sizes []int64
		count := 0
		for _, c := range want {
			require.False(t, c.Chunk.freeSince < last && !taken[c.Chunk], "an older one stays")
			require.False(t, c.Chunk.freeSince > last && taken[c.Chunk], "a younger one goes")
			switch {
			case c.Chunk.freeSince < last:
				need -= c.Bytes
			case c.Chunk.freeSince == last:
				sizes = append(sizes, c.Bytes)
				if taken[c.Chunk] {
					count++
				}
			}
		}
		require.Positive(t, need)
		slices.SortFunc(sizes, func(a, b int64) int { return cmp.Compare(b, a) })
		fewest := 0
		rest := need
		for ; rest > 0; fewest++ {
			rest -= sizes[fewest]
		}
		require.Equal(t, fewest, count)
		if count < len(sizes) {
			parts++
		}
		// the others of its age are the largest; it is the smallest that is enough after them
		end := got[len(got)-1].size
		for _, size := range sizes[:fewest-1] {
			need -= size
		}
		for _, size := range sizes[fewest-1:] {
			require.False(t, size >= need && size < end, "%d would have been enough, and %d went", size, end)
		}
		require.NoError(t, a.Check(true, false))
	}
	require.Greater(t, parts, 50)
}
