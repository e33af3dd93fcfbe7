package replay

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/internal/recording"
)

// TestVerifyExtremeStreams: only the order of stream IDs matters. Recordings of PyTorch verify with
// IDs at the end of 64 bits, and around the middle.
func TestVerifyExtremeStreams(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine")
	}
	several := 0
	for _, file := range recordings(t) {
		list, err := readFile(file)
		require.NoError(t, err)
		var ids []uint64
		for _, e := range list[0].Entries {
			ids = append(ids, e.Stream)
		}
		for _, s := range list[0].Segments {
			ids = append(ids, s.Stream)
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
		if len(list[0].Entries) > 20_000 || list[0].Calls { // calls name streams, too
			continue
		}
		several += min(len(ids)-1, 1)
		for _, last := range []uint64{math.MaxUint64, 1<<63 + uint64(len(ids)/2)} {
			id := func(old uint64) uint64 {
				i, _ := slices.BinarySearch(ids, old)
				return last - uint64(len(ids)-1-i)
			}
			rec := *list[0]
			rec.Budget, rec.Entries, rec.Segments = rec.Budget.Part(1), slices.Clone(rec.Entries), slices.Clone(rec.Segments)
			for i := range rec.Entries {
				rec.Entries[i].Stream = id(rec.Entries[i].Stream)
			}
			for i := range rec.Segments {
				rec.Segments[i].Stream = id(rec.Segments[i].Stream)
			}
			p, err := recording.NewProgram(&rec)
			require.NoError(t, err)
			v, err := Verify(p)
			require.NoError(t, err)
			require.Zero(t, v.Mismatches(), "%s, the last stream is %d: %+v", filepath.Base(file), last, v)
		}
	}
	require.Greater(t, several, 2, "recordings of several streams")
}
