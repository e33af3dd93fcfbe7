package memcache

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
)

// whatIf makes the calls of a recording's program on a cache with other options. The stream of a
// pending block completes when the recording shows the block's free as complete.
func whatIf(t *testing.T, r *recording, config Config) Stats {
	dev := newScripted(r.TotalMemory)
	if r.Limit != nil {
		config.MemoryLimit = *r.Limit
	}
	c, err := New(dev, config)
	require.NoError(t, err)
	streams, uses := map[uint64]*scriptedStream{}, map[int64]*scriptedStream{}
	blocks := map[int64]Block{}
	next := uint64(1) << 62
	for i, e := range r.entries {
		switch e.action {
		case "alloc":
			if streams[e.stream] == nil {
				streams[e.stream] = dev.stream(e.stream)
			}
			b, err := c.Alloc(t.Context(), e.size, streams[e.stream])
			if err != nil {
				require.ErrorIs(t, err, ErrOutOfMemory)
			}
			blocks[e.address] = b
		case "free_requested":
			b := blocks[e.address]
			if i+1 == len(r.entries) || r.entries[i+1].action != "free_completed" || r.entries[i+1].address != e.address {
				next++
				s := dev.stream(next)
				s.busy = true
				uses[e.address] = s
				require.NoError(t, b.RecordStream(s))
			}
			if err := b.Free(); err != nil {
				require.NoError(t, err)
			}
		case "free_completed":
			if s := uses[e.address]; s != nil {
				s.finish()
				delete(uses, e.address)
			}
		}
	}
	require.NoError(t, c.check())
	return c.Stats()
}

func ratioOf(s Stats) float64 {
	return float64(s.ReservedBytes.All.Peak) / float64(s.AllocatedBytes.All.Peak)
}

// TestExpandablePeaks compares peak reserved ÷ peak allocated with expandable segments with
// PyTorch's ratio: in its own recording with them if there is one, otherwise without. The
// recordings of a short run cover every case: with and without a limit, and with and without a
// recording of PyTorch's expandable segments.
func TestExpandablePeaks(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine, and long")
	}
	recorded := map[string]*recording{}
	for _, file := range recordings(t) {
		recorded[strings.TrimSuffix(filepath.Base(file), ".jsonl.gz")] = readRecording(t, file)
	}
	t.Logf("%-24s %8s %8s %8s %8s %10s   %s", "recording", "PyTorch", "ours", "2 MiB", "remap", "per active", "driver calls")
	for name, r := range recorded {
		if testing.Short() && len(r.entries) > 20_000 { // whose options are not used here
			continue
		}
		like := r
		if e := recorded[name+".expandable"]; e != nil {
			like = e
		}
		want := float64(like.Stats["reserved_bytes.all.peak"]) / float64(like.Stats["allocated_bytes.all.peak"])
		ours := whatIf(t, r, Config{ExpandableSegments: true})
		fine := whatIf(t, r, Config{ExpandableSegments: true, ExpandableGranuleMB: 2})
		remap := whatIf(t, r, Config{ExpandableSegments: true, ExpandableGranuleMB: 2, ExpandableRemap: true})
		atWork := float64(remap.ReservedBytes.All.Peak) / float64(remap.ActiveBytes.All.Peak)
		t.Logf("%-24s %8.3f %8.3f %8.3f %8.3f %10.3f   %d %d %d", name, want, ratioOf(ours), ratioOf(fine), ratioOf(remap), atWork,
			ours.NumDeviceAlloc, fine.NumDeviceAlloc, remap.NumDeviceAlloc)
		if like != r && r.Limit == nil || like == r && strings.HasSuffix(name, ".expandable") && r.Limit == nil {
			require.LessOrEqual(t, ratioOf(ours), want+1e-9, name)
		}
		if r.Limit == nil {
			require.LessOrEqual(t, ratioOf(fine), ratioOf(ours)+1e-3, name)
		}
		most := 1.03
		if name == "mnist_cnn" {
			most = 1.08 // 358 MiB in blocks that end inside of granules
		}
		require.LessOrEqual(t, atWork, most, name)
	}
}
