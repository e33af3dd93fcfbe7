package peaks

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// For any quotas and uses, a covered peak is the larger one of the old peak and the new use, and
// the quotas add up to it, none below its use.
func TestCoverRaisesToTheSum(t *testing.T) {
	type part struct{ used, quota int64 }
	rng := rand.New(rand.NewPCG(1, 5))
	raised, covered := 0, 0
	for range 20_000 {
		parts := make([]*part, 1+rng.IntN(5))
		var peak, used int64
		for i := range parts {
			p := &part{used: rng.Int64N(9)}
			p.quota = p.used + rng.Int64N(6)*rng.Int64N(2)
			parts[i] = p
			peak += p.quota
			used += p.used
		}
		mine := parts[rng.IntN(len(parts))]
		n := rng.Int64N(21) - min(mine.used, 4)
		want := max(peak, used+n)
		if mine.used+n > mine.quota && want == peak {
			covered++
		}
		before := peak
		rose := Cover(&peak, mine, parts, n, func(p *part) (int64, *int64) { return p.used, &p.quota })
		require.Equal(t, want, peak)
		require.Equal(t, want > before, rose)
		mine.used += n
		var quotas int64
		for _, p := range parts {
			require.LessOrEqual(t, p.used, p.quota)
			quotas += p.quota
		}
		require.Equal(t, peak, quotas)
		if rose {
			raised++
		}
	}
	require.Greater(t, min(raised, covered), 1000, "both ways were gone")
}
