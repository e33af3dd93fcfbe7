package memcache

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOptionsAreReadBack: the string of any valid configuration contains all of it.
func TestOptionsAreReadBack(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	some := func(values ...int64) int64 { return values[r.IntN(len(values))] }
	valid := 0
	for range 3000 {
		c := Config{
			MaxSplitSizeMB: some(0, 0, 20, 64, 200), MaxNonSplitRoundingMB: some(0, 0, 30, 512), LargeSegmentSizeMB: some(0, 0, 12, 30),
			ExpandableSegments: r.IntN(2) == 0, ExpandableGranuleMB: some(0, 2, 4), ExpandableRemap: r.IntN(3) == 0,
			MemoryLimit: some(0, 1, 1<<40), ReleaseLockOnCudaMalloc: r.IntN(2) == 0, NoCaching: r.IntN(4) == 0, Exact: r.IntN(2) == 0,
		}
		switch r.IntN(4) {
		case 0:
			c.RoundupPower2Divisions = AllDivisions(int(some(1, 2, 4, 8)))
		case 1:
			for i := range c.RoundupPower2Divisions {
				c.RoundupPower2Divisions[i] = int(some(0, 1, 4, 8))
			}
		case 2:
			for i := r.IntN(16); i < 16; i++ {
				c.RoundupPower2Divisions[i] = 4
			}
		}
		if r.IntN(3) == 0 {
			c.GarbageCollectionThreshold = r.Float64()
		}
		if r.IntN(3) == 0 && c.MemoryLimit == 0 {
			c.PerProcessMemoryFraction = []float64{r.Float64(), 1, math.SmallestNonzeroFloat64}[r.IntN(3)]
		}
		if _, err := c.rules(); err != nil {
			continue
		}
		valid++
		back, err := ParseConfig(c.Options())
		require.NoError(t, err, "%+v", c)
		require.Equal(t, c, back, c.Options())
	}
	require.Greater(t, valid, 300)
	require.Empty(t, Config{}.Options())
	require.Equal(t, "roundup_power2_divisions:4,exact:True", Config{RoundupPower2Divisions: AllDivisions(4), Exact: true}.Options())
	require.Equal(t, "[1:0,2:4,>:0]", Divisions{1: 4}.String())
	require.Equal(t, "[1:0,2:0,4:0,8:0,16:0,32:0,64:0,128:0,256:0,512:0,1024:0,2048:0,4096:0,8192:0,>:4]", Divisions{14: 4, 15: 4}.String())
	require.Equal(t, "[1:0,2:0,4:0,8:0,16:0,32:0,64:0,128:0,256:0,512:0,1024:0,2048:0,4096:0,8192:0,16384:0,32768:4]", Divisions{15: 4}.String())
}
