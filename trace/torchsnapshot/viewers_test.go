package torchsnapshot

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// TestFilesForViewers writes before.pickle and after.pickle into the folder CISTERN_SNAPSHOTS, to
// be opened with torch's own viewers, and figures.json with the figures that these must show.
func TestFilesForViewers(t *testing.T) {
	dir := os.Getenv("CISTERN_SNAPSHOTS")
	if dir == "" {
		t.Skip("CISTERN_SNAPSHOTS names no folder")
	}
	p := newProgram(t, "", memcache.StacksAll)
	figures := map[string]map[string]int64{}
	for _, name := range []string{"before.pickle", "after.pickle"} {
		p.run(400)
		s := p.state()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), written(t, s), 0o644))
		f := map[string]int64{"entries": int64(len(s.Snapshot.History)), "segments": int64(len(s.Snapshot.Segments))}
		for _, g := range s.Snapshot.Segments {
			f["reserved"] += g.TotalSize
			for _, b := range g.Blocks {
				if b.State == memcache.BlockAllocated {
					f["allocated"] += b.RequestedSize
				}
			}
		}
		figures[name] = f
	}
	text, err := json.MarshalIndent(figures, "", "  ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "figures.json"), text, 0o644))
}
