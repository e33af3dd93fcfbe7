package placement

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
)

func TestIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var x index
	var set []*Chunk
	order := func(a, b *Chunk) int {
		return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.ptr, b.ptr))
	}
	for i := range 6000 {
		if len(set) > 0 && r.IntN(3) == 0 {
			k := r.IntN(len(set))
			x.remove(set[k])
			set = append(set[:k], set[k+1:]...)
		} else {
			sizes := []int64{r.Int64N(20), r.Int64N(5000), sizes.LargeSegment/512 + r.Int64N(3) - 1, r.Int64N(200_000)}
			m := &Chunk{size: 512 * (1 + sizes[r.IntN(4)]), ptr: device.Ptr(r.Uint32N(1<<30) | 1<<30 + uint32(i%2))}
			if slices.ContainsFunc(set, func(o *Chunk) bool { return order(o, m) == 0 }) {
				continue
			}
			x.insert(m)
			set = append(set, m)
			slices.SortFunc(set, order)
		}
		size := r.Int64N(1 << uint(r.IntN(28)+1))
		at, _ := slices.BinarySearchFunc(set, &Chunk{size: size}, order)
		at2 := func(i int) *Chunk {
			if i < 0 || i >= len(set) {
				return nil
			}
			return set[i]
		}
		require.Same(t, at2(at), x.atLeast(size))
		require.Same(t, at2(len(set)-1), x.before(nil))
		if m := at2(at); m != nil {
			require.Same(t, at2(at+1), x.after(m))
			require.Same(t, at2(at-1), x.before(m))
		}
	}
	var all []*Chunk
	x.each(func(m *Chunk) { all = append(all, m) })
	require.Equal(t, set, all)
	require.Equal(t, len(set), x.len)
	for i, m := range set[1:] {
		require.Same(t, m, x.after(set[i]))
		require.Same(t, set[i], x.before(m))
	}
	for len(set) > 0 { // the last one, whichever tree has it
		last := set[len(set)-1]
		require.Same(t, last, x.before(nil))
		x.remove(last)
		set = set[:len(set)-1]
	}
	require.Nil(t, x.before(nil))
	require.Nil(t, x.atLeast(0))
}
