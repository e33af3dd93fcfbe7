package placement

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/sizes"
)

// TestSegmentSizeIn: a pool that starts small reserves at most twice what its unserved requests
// need, and never a larger segment than other pools.
func TestSegmentSizeIn(t *testing.T) {
	rules := Rules{MaxSplit: math.MaxInt64, LargeSegment: sizes.LargeSegment}
	small := &Pool{StartSmall: true}
	for _, c := range []struct{ rounded, reserved, want int64 }{
		{1<<20 + 512, 0, 4 << 20},
		{3<<20 - 512, 0, 4 << 20}, // 1 MiB and 512 bytes are left, which are split off
		{3 << 20, 0, 6 << 20},
		{3 << 20, 4 << 20, 6 << 20},
		{3 << 20, 10 << 20, 10 << 20},
		{3 << 20, 22 << 20, 20 << 20},
		{10<<20 - 512, 0, 12 << 20},
		{512, 8 << 20, 2 << 20}, // small ones, and
		{10 << 20, 0, 10 << 20}, // large ones, as always
		{11 << 20, 0, 12 << 20},
	} {
		require.Equal(t, c.want, rules.SegmentSizeIn(small, c.rounded, c.reserved), "%+v", c)
		for _, p := range []*Pool{nil, {}} {
			require.Equal(t, rules.SegmentSize(c.rounded), rules.SegmentSizeIn(p, c.rounded, c.reserved), "%+v", c)
		}
		for _, set := range []func(*Rules){func(r *Rules) { r.Exact = true }, func(r *Rules) { r.Expandable = true }} {
			r := rules
			set(&r)
			require.Equal(t, r.SegmentSize(c.rounded), r.SegmentSizeIn(small, c.rounded, c.reserved), "%+v", r)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var reserved, needed int64
		for range 1 + random.IntN(30) {
			rounded := RoundUp(sizes.SmallLimit+1+random.Int64N(sizes.MinLarge-sizes.SmallLimit-sizes.MinBlock), sizes.MinBlock)
			n := rules.SegmentSizeIn(small, rounded, reserved)
			require.Less(t, rounded+sizes.SmallLimit, n)
			require.LessOrEqual(t, n, rules.SegmentSize(rounded))
			require.LessOrEqual(t, n, max(reserved, rounded+3*sizes.SmallLimit))
			reserved, needed = reserved+n, needed+rounded
		}
		require.LessOrEqual(t, needed, reserved)
	}
}
