package replay

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// TestSizesAtTheStart: a block was the front of a free chunk, and has all of it if the rest was too
// small to be split off. A neighbour that was freed meanwhile hides the block's size, until a block
// is placed between them.
func TestSizesAtTheStart(t *testing.T) {
	const mib, at = 1 << 20, device.Ptr(1 << 40)
	type test struct {
		name   string
		config memcache.Config
		kind   recording.Kind
		room   int64
		end    device.Ptr // known from a later block
		asked  int64
		want   int64
	}
	for _, c := range []test{
		{"small, split", memcache.Config{}, recording.SmallKind, 2 * mib, 0, 700, 1024},
		{"small, exact", memcache.Config{}, recording.SmallKind, 1024, 0, 700, 1024},
		{"large, split", memcache.Config{}, recording.LargeKind, 20 * mib, 0, 5*mib - 1, 5 * mib},
		{"large, 1 MiB over", memcache.Config{}, recording.LargeKind, 6 * mib, 0, 5*mib - 1, 6 * mib},
		{"large, more than 1 MiB over", memcache.Config{}, recording.LargeKind, 6*mib + 512, 0, 5*mib - 1, 5 * mib},
		{"large, with a neighbour that is gone", memcache.Config{}, recording.LargeKind, 20 * mib, at + 6*mib, 5*mib - 1, 6 * mib},
		{"large, split by a later one", memcache.Config{}, recording.LargeKind, 20 * mib, at + 5*mib, 5*mib - 1, 5 * mib},
		{"never split", memcache.Config{MaxSplitSizeMB: 30}, recording.LargeKind, 50 * mib, 0, 40 * mib, 50 * mib},
		{"below max_split_size", memcache.Config{MaxSplitSizeMB: 30}, recording.LargeKind, 28 * mib, 0, 20 * mib, 20 * mib},
		{"expandable", memcache.Config{ExpandableSegments: true}, recording.LargeKind, 6 * mib, 0, 5*mib - 1, 5 * mib},
		{"rounded up", memcache.Config{RoundupPower2Divisions: memcache.AllDivisions(2)}, recording.LargeKind, 200 * mib, 0, 65 * mib, 96 * mib},
		{"it does not fit", memcache.Config{}, recording.LargeKind, 4 * mib, 0, 5 * mib, 5 * mib},
	} {
		tiles := tiler{config: c.config, ends: map[device.Ptr]device.Ptr{}}
		if c.end != 0 {
			tiles.ends[at] = c.end
		}
		got := tiles.sizeOf(&recording.Block{Address: at, Requested: c.asked}, &recording.Segment{Kind: c.kind}, c.room)
		require.Equal(t, c.want, got, c.name)
	}
}
