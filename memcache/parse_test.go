package memcache

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSettings: the strings that PyTorch accepts, and their meanings.
func TestSettings(t *testing.T) {
	for options, want := range map[string]Config{
		"":                         {},
		"backend:native":           {},
		"max_split_size_mb:20":     {MaxSplitSizeMB: 20},
		" max_split_size_mb : 64 ": {MaxSplitSizeMB: 64},
		"max_split_size_mb:64,max_non_split_rounding_mb:32":         {MaxSplitSizeMB: 64, MaxNonSplitRoundingMB: 32},
		"large_segment_size_mb:11,max_split_size_mb:11":             {LargeSegmentSizeMB: 11, MaxSplitSizeMB: 11},
		"garbage_collection_threshold:0.8":                          {GarbageCollectionThreshold: 0.8},
		"per_process_memory_fraction:0.5":                           {PerProcessMemoryFraction: 0.5},
		"per_process_memory_fraction:1.0":                           {PerProcessMemoryFraction: 1},
		"per_process_memory_fraction:0.0":                           {PerProcessMemoryFraction: math.SmallestNonzeroFloat64},
		"per_process_memory_fraction:0":                             {PerProcessMemoryFraction: math.SmallestNonzeroFloat64},
		"expandable_segments:True":                                  {ExpandableSegments: true},
		"expandable_segments:False,release_lock_on_cudamalloc:True": {ReleaseLockOnCudaMalloc: true},
		"expandable_segments:True,expandable_segments:False":        {},
		"roundup_power2_divisions:4":                                {RoundupPower2Divisions: AllDivisions(4)},
		"roundup_power2_divisions:1":                                {RoundupPower2Divisions: AllDivisions(1)},
		"roundup_power2_divisions:[256:1,512:2,1024:4,>:8]": {
			RoundupPower2Divisions: Divisions{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8}},
		"roundup_power2_divisions:[64:8,256:4,>:2],max_split_size_mb:40": {
			RoundupPower2Divisions: Divisions{8, 8, 8, 8, 8, 8, 8, 0, 4, 2, 2, 2, 2, 2, 2, 2}, MaxSplitSizeMB: 40},
		"roundup_power2_divisions:[1:0,65536:2]":                                                        {RoundupPower2Divisions: Divisions{15: 2}},
		"pinned_use_cuda_host_register:True,pinned_num_register_threads:128":                            {},
		"pinned_use_background_threads:False,pinned_reserve_segment_size_mb:1":                          {},
		"graph_capture_record_stream_reuse:True,garbage_collection_threshold:0.5,max_split_size_mb:100": {GarbageCollectionThreshold: 0.5, MaxSplitSizeMB: 100, GraphCaptureRecordStreamReuse: true},
		// Not PyTorch's.
		"expandable_segments:True,expandable_remap:True,expandable_granule_mb:2":   {ExpandableSegments: true, ExpandableRemap: true, ExpandableGranuleMB: 2},
		"memory_limit:5,memory_limit:0,max_cached_bytes:7,expandable_granule_mb:0": {MaxCachedBytes: 7},
		"memory_limit:1000000001,no_caching:True,exact:True":                       {MemoryLimit: 1000000001, NoCaching: true, Exact: true},
	} {
		c, err := ParseConfig(options)
		require.NoError(t, err, options)
		require.Equal(t, want, c, options)
		_, err = New(newScripted(1<<30), c)
		require.NoError(t, err, options)
	}
}

// TestFractionOfZero: an explicit 0 lets nothing be reserved, as in SetMemoryFraction; without the
// option there is no limit.
func TestFractionOfZero(t *testing.T) {
	config, err := ParseConfig("per_process_memory_fraction:0.0")
	require.NoError(t, err)
	c, dev := newCache(t, config)
	_, err = c.Alloc(t.Context(), 1, dev.stream(1))
	var oom *OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.Zero(t, oom.Limit)
	c, dev = newCache(t, Config{})
	require.NoError(t, mustAlloc(t, c, 1, dev.stream(1)).Free())
	require.NoError(t, c.SetMemoryFraction(0))
	require.NoError(t, c.EmptyCache(t.Context()))
	_, err = c.Alloc(t.Context(), 1, dev.stream(1))
	require.ErrorAs(t, err, &oom)
	require.Zero(t, oom.Limit)
}

// TestRefusedSettings: the strings that PyTorch refuses; the first seven are from its own test.
func TestRefusedSettings(t *testing.T) {
	for _, options := range []string{
		"foo:1,bar:2",
		"garbage_collection_threshold:1.2",
		"max_split_size_mb:2",
		"release_lock_on_cudamalloc:none",
		"pinned_use_cuda_host_register:none",
		"pinned_num_register_threads:none",
		"pinned_num_register_threads:1024",

		"expandable_segments", "expandable_segments:", "expandable_segments:true", ":", ",", "max_split_size_mb:",
		"max_split_size_mb:19", "max_split_size_mb:-1", "max_split_size_mb:x",
		"max_non_split_rounding_mb:19", "large_segment_size_mb:10", "large_segment_size_mb:0",
		"large_segment_size_mb:64,max_split_size_mb:32", "large_segment_size_mb:64,max_non_split_rounding_mb:32",
		"garbage_collection_threshold:0", "garbage_collection_threshold:1", "garbage_collection_threshold:NaN",
		"per_process_memory_fraction:1.01", "per_process_memory_fraction:-0.1", "per_process_memory_fraction:nan",
		"roundup_power2_divisions:0", "roundup_power2_divisions:3", "roundup_power2_divisions:[", "roundup_power2_divisions:[3:4]",
		"roundup_power2_divisions:[4:3]", "roundup_power2_divisions:[x:4]", "roundup_power2_divisions:[]",
		"roundup_power2_divisions:[1:2]x", "roundup_power2_divisions:[1:2]max_split_size_mb:20",
		"pinned_num_register_threads:3", "pinned_reserve_segment_size_mb:0", "backend:other",
		"expandable_remap:True", "expandable_granule_mb:3", "memory_limit:-1", "max_cached_bytes:-1", "memory_limit:1GiB", "no_caching:1", "exact:yes",
	} {
		c, err := ParseConfig(options)
		require.ErrorIs(t, err, ErrInvalid, options)
		require.ErrorContains(t, err, options)
		require.Zero(t, c)
	}
}

// TestDivisionsByByte: the sizes in PyTorch's own test of its settings, and test vectors of its
// rules.
func TestDivisionsByByte(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		options     string
		bytes, want int64
	}{
		{"", 84 * mib, 84 * mib},
		{"roundup_power2_divisions:4", 84 * mib, 96 * mib},
		{"roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 84 * mib, 88 * mib},
		{"roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 400 * mib, 512 * mib},
		{"roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 1025 * mib, 1025 * mib},
		{"roundup_power2_divisions:4", 1200, 1536},
		{"roundup_power2_divisions:4", 2049, 2560},
		{"roundup_power2_divisions:4", 5000, 5120},
		{"roundup_power2_divisions:2", 514 * mib, 768 * mib},
		{"roundup_power2_divisions:4", 514 * mib, 640 * mib},
		{"roundup_power2_divisions:8", 3*mib + 1, 3_407_872},
		{"roundup_power2_divisions:1", 3*mib + 1, 3*mib + 512},
		{"roundup_power2_divisions:8", 4 * mib, 4 * mib},
	} {
		config, err := ParseConfig(c.options)
		require.NoError(t, err)
		require.Equal(t, c.want, config.RoundSize(c.bytes), "%s: %d", c.options, c.bytes)
		cache, err := New(newScripted(1<<40), config)
		require.NoError(t, err)
		mustAlloc(t, cache, c.bytes, cache.dev.(*scripted).stream(1))
		st := cache.Stats()
		require.Equal(t, c.bytes, st.RequestedBytes.All.Current)
		require.GreaterOrEqual(t, st.AllocatedBytes.All.Current, c.want)
		require.LessOrEqual(t, st.AllocatedBytes.All.Current, c.want+mib)
	}
}
