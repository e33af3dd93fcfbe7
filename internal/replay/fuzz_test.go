package replay

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// FuzzReplay: replays of any recording end, and count.
func FuzzReplay(f *testing.F) {
	for _, conf := range []string{"", "expandable_segments:True", "max_split_size_mb:20,garbage_collection_threshold:0.5"} {
		f.Add([]byte("{\"conf\":\"" + conf + "\",\"total_memory\":1073741824,\"stats\":{\"num_ooms\":1}}\n" +
			"[\"segment_alloc\",4194304,2097152,0]\n[\"segment_map\",8388608,2097152,0]\n[\"alloc\",4194304,100,0]\n" +
			"[\"free_requested\",4194304,100,0]\n[\"free_completed\",4194304,100,0]\n[\"segment_free\",4194304,2097152,0]\n" +
			"[\"segment_unmap\",4194304,2097152,0]\n[\"oom\",4096,30000000,0]\n[\"segment_alloc\",4194304,30000000,0]\n" +
			"[\"alloc\",8194304,30000000,0]\n[\"free_requested\",8194304,30000000,0]\n"))
	}
	for _, conf := range []string{"", "expandable_segments:True"} { // begun late
		f.Add([]byte("{\"conf\":\"" + conf + "\",\"total_memory\":1073741824,\"segments\":[{\"address\":41943040,\"total_size\":20971520,\"stream\":0,\"pool\":1,\"blocks\":[[41943040,4194304,4194304,\"active_allocated\"],[46137344,16777216,9,\"inactive\"]]}]}\n" +
			"[\"free_completed\",46137344,4194304,0]\n[\"segment_free\",83886080,2097152,0]\n[\"segment_unmap\",104857600,20971520,0]\n[\"free_requested\",50331648,3000000,0]\n[\"free_completed\",50331648,3000000,0]\n[\"alloc\",46137344,100000,0]\n[\"free_requested\",46137344,100000,0]\n[\"free_completed\",46137344,100000,0]\n"))
	}
	f.Add([]byte("{\"conf\":\"expandable_segments:True\"}\n[\"segment_map\",12345,1152921504606846975,7]\n[\"alloc\",9223372036854775807,1152921504606846975,7]\n"))
	for _, more := range []string{"", ",\"host_memory\":true,\"initial\":1", ",\"limit\":52428800"} {
		f.Add([]byte("{\"format\":\"cistern recording 1\",\"conf\":\"expandable_segments:True\",\"total_memory\":1073741824" + more + "}\n" +
			"[\"miss\",0,512,7]\n[\"reserve\",4194304,67108864,7]\n[\"segment_map\",4194304,2097152,7]\n[\"alloc\",4194304,100,7,0,-1,512,-1,0,1,1]\n" +
			"[\"free\",4194304,100,7]\n[\"overlap\",0,0,0]\n[\"flush\",0,0,0]\n[\"segment_unmap\",4194304,2097152,7]\n[\"empty_cache\",0,0,0]\n" +
			"[\"stream_closed\",0,0,7]\n[\"reset_peaks\",0,0,0]\n[\"refused\",0,1,7]\n[\"oom\",5,512,7]\n" +
			"{\"stats\":{\"num_ooms\":1},\"segments\":[]}\n"))
	}
	// Thousands of mappings in one step.
	f.Add([]byte("{\"Conf\":\"expandable_segments:True\"}\n[\"alloc\",1,50000000000,0]\n"))
	limits := budget.Limits{MaxMemory: 1 << 22, MaxWork: 1 << 20}
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := recording.Read(bytes.NewReader(data), "fuzz", recording.Options{Limits: limits})
		if err != nil {
			return
		}
		p, err := recording.NewProgram(list[0])
		if err != nil {
			return
		}
		v, err := Verify(p)
		if err != nil {
			require.ErrorContains(t, err, "fuzz: ")
			return
		}
		_, work := p.Budget.Spent()
		require.LessOrEqual(t, work, limits.MaxWork)
		require.Equal(t, v.Mismatches() > 0, v.First != "")
		s, err := NewScenario(p)
		if err != nil {
			require.ErrorIs(t, err, budget.ErrExceeded)
			return
		}
		e, err := s.Estimate(memcache.Config{Exact: true, ExpandableSegments: len(data)%2 == 0})
		if err == nil {
			require.Equal(t, v.Allocs, e.Allocs)
			require.LessOrEqual(t, e.PeakAllocated, e.PeakReserved)
		}
	})
}
