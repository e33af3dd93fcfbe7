package replay

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache/internal/recording"
)

// workloads are what callers do that no recording at hand does.
func workloads() map[string]workload {
	confs := map[string]string{
		"default": "", "maxsplit": "max_split_size_mb:20", "gc": "garbage_collection_threshold:0.5",
		"both": "max_split_size_mb:32,garbage_collection_threshold:0.7", "divisions": "roundup_power2_divisions:[1:2,8:4,>:8]",
		"expandable": "expandable_segments:True", "segment": "large_segment_size_mb:30,max_split_size_mb:40",
	}
	m := map[string]workload{}
	for name, conf := range confs {
		m[name+"/free"] = workload{conf: conf, capacity: 1 << 36, sides: 3, steps: 1500, largest: 26, empty: 0.003}
		m[name+"/limit"] = workload{conf: conf, capacity: 1 << 36, limit: 400 << 20, sides: 4, steps: 1500, largest: 26}
		m[name+"/limit and empty_cache"] = workload{conf: conf, capacity: 1 << 36, limit: 300<<20 + 12345, sides: 3, steps: 1500, largest: 27, empty: 0.01}
		m[name+"/full"] = workload{conf: conf, capacity: 400 << 20, sides: 2, steps: 1000, largest: 26}
	}
	return m
}

// TestRandomRecordings verifies recordings of random callers under every kind of option.
func TestRandomRecordings(t *testing.T) {
	for name, w := range workloads() {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(5) {
				rec := record(t, seed, w).rec
				verifies(t, rec, fmt.Sprintf("seed %d", seed))
			}
		})
	}
}

func verifies(t *testing.T, rec recording.Recording, what string) *Verification {
	t.Helper()
	p, err := recording.NewProgram(&rec)
	require.NoError(t, err)
	v, err := Verify(p)
	require.NoError(t, err)
	require.Zero(t, v.Mismatches(), "%s: %d retries, %d ooms: %+v", what, rec.Stats["num_alloc_retries"], rec.Stats["num_ooms"], v)
	return v
}
