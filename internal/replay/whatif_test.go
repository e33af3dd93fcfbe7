package replay

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
)

// TestEstimateOfTheRecordedOptions: the estimate under the recorded options is the recorded cost.
func TestEstimateOfTheRecordedOptions(t *testing.T) {
	t.Parallel()
	files := recordings(t)
	const vit = "../../memcache/testdata/recordings/vit_eval.jsonl.gz"
	if !race.Enabled && !slices.Contains(files, vit) {
		files = append(files, vit) // long, but the only one where an EmptyCache has to be inferred
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			p := program(t, file)
			s, err := NewScenario(p)
			require.NoError(t, err)
			config, err := Config(p)
			require.NoError(t, err)
			e, err := s.Estimate(config)
			require.NoError(t, err)
			driver := p.Stats["num_device_alloc"] + p.Stats["num_device_free"]
			require.Equal(t, []int64{p.Stats["allocated_bytes.all.peak"], p.Stats["reserved_bytes.all.peak"], p.Stats["num_alloc_retries"],
				p.Stats["num_ooms"], driver}, []int64{e.PeakAllocated, e.PeakReserved, e.Retries, e.OOMs, e.DriverCalls})
		})
	}
}

// TestEstimateOfOtherOptions: with expandable segments the same programs reserve less; with half
// of the memory they fail.
func TestEstimateOfOtherOptions(t *testing.T) {
	t.Parallel()
	p := program(t, "../../memcache/testdata/recordings/segmentation.jsonl.gz")
	s, err := NewScenario(p)
	require.NoError(t, err)
	normal, err := s.Estimate(memcache.Config{Exact: true})
	require.NoError(t, err)
	expandable, err := s.Estimate(memcache.Config{Exact: true, ExpandableSegments: true})
	require.NoError(t, err)
	require.Less(t, expandable.Ratio(), 0.8*normal.Ratio())
	require.Zero(t, normal.OOMs)
	small, err := s.Estimate(memcache.Config{Exact: true, MemoryLimit: normal.PeakAllocated / 2})
	require.NoError(t, err)
	require.Positive(t, small.OOMs)
	require.Positive(t, small.Retries)
	require.LessOrEqual(t, small.PeakReserved, normal.PeakAllocated/2)
	require.Equal(t, normal.Allocs, small.Allocs)
}
