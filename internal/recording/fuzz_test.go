package recording

import (
	"bytes"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/budget"
)

var fuzzOptions = Options{Limits: budget.Limits{MaxMemory: 1 << 22, MaxWork: 1 << 20}, Details: true}

// readsWithin reads data, whether or not a program can be made of it, without a panic and within
// the limits on charged and allocated memory.
func readsWithin(t *testing.T, data []byte) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	list, err := Read(bytes.NewReader(data), "file", fuzzOptions)
	runtime.ReadMemStats(&after)
	require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(4*fuzzOptions.MaxMemory)+200*uint64(len(data)))
	check(t, list, err)
}

func check(t *testing.T, list []*Recording, err error) {
	if err != nil {
		require.Less(t, len(err.Error()), 2000)
		return
	}
	for _, r := range list {
		memory, work := r.Budget.Spent()
		require.LessOrEqual(t, memory, fuzzOptions.MaxMemory)
		require.LessOrEqual(t, work, fuzzOptions.MaxWork)
		require.LessOrEqual(t, entryMemory*int64(len(r.Entries)), memory)
		for _, e := range r.Entries {
			require.True(t, e.Size > 0 || r.Own && e.Action.ours() && e.Size == 0)
			require.Less(t, e.Size, int64(MaxSize))
		}
		checkDetails(t, r)
		p, err := NewProgram(r)
		if err != nil {
			continue
		}
		at := 0
		if !r.Own && !r.Calls && r.Segments != nil && p.Contradiction == "" && len(r.Entries) > 0 && r.Entries[0].Action == FreeCompleted {
			at = 1 // of a call before the recording
		}
		for i := range p.Steps { // the steps tile the entries
			s := &p.Steps[i]
			for r.Own && at < int(s.From) && r.Entries[at].Action == Overlap {
				at++
			}
			require.EqualValues(t, at, s.From)
			switch {
			case s.Kind == StepEmpty && r.Own:
				at = int(s.To) + 1
			case s.Kind == StepEmpty, s.Kind == StepOther:
				at = int(s.To)
			case s.Kind == StepFree && s.Completed == s.Entry+1 && !s.Later:
				at = int(s.Entry) + 2
			default:
				at = int(s.Entry) + 1
			}
		}
		for r.Own && at < len(r.Entries) && r.Entries[at].Action == Overlap {
			at++
		}
		require.Equal(t, len(r.Entries), at)
	}
}

// checkDetails requires that references in details are valid.
func checkDetails(t *testing.T, r *Recording) {
	d, n := r.Details, len(r.Entries)
	require.NotNil(t, d)
	for _, list := range []int{len(d.Times), len(d.Labels), len(d.Stacks), len(d.Steps), len(d.Serials)} {
		require.True(t, list == 0 || list == n, "%d of %d", list, n)
	}
	for i := range n {
		require.True(t, d.Labels == nil || d.Labels[i] >= -1 && int(d.Labels[i]) < len(d.LabelTable))
		require.True(t, d.Stacks == nil || d.Stacks[i] >= -1 && int(d.Stacks[i]) < len(d.StackTable))
	}
	for _, s := range d.StackTable {
		for _, f := range s {
			require.True(t, f >= 0 && int(f) < len(d.Frames))
		}
	}
	for _, m := range d.Marks {
		require.True(t, m.From >= 0 && m.From <= n && (m.To == -1 || m.To >= m.From && m.To <= n))
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"segments":[{"address":8388608,"total_size":20971520,"stream":0,"pool":1,"blocks":[[8388608,4194304,4194304,"active_allocated"],[12582912,16777216,9,"inactive"]]}]}` +
		"\n[\"free_completed\",12582912,4194304,0]\n[\"segment_free\",41943040,2097152,0]\n[\"free_requested\",20971520,100,0]\n[\"free_completed\",20971520,100,0]\n"))
	f.Add([]byte(`{"device_traces":[[{"action":"alloc","addr":4096,"size":100,"stream":0,"time_us":1,"frames":[{"name":"f","filename":"x","line":1}]}]],"segments":[{"address":4096,"total_size":512,"stream":-1,"segment_pool_id":[0,1],"blocks":[{"size":512,"requested_size":100,"state":"active_allocated"}]}]}`))
	f.Add([]byte("{\"conf\":\"\",\"stats\":{}}\n[\"segment_alloc\",4096,2097152,0]\n[\"alloc\",4096,100,0]\n[\"free_requested\",4096,100,0]\n[\"free_completed\",4096,100,0]\n[\"oom\",4096,100,0]\n"))
	f.Add([]byte(own))
	f.Add([]byte("{\"segments\":[{\"address\":1,\"total_size\":2,\"stream\":-3,\"blocks\":[[1,2,3,\"inactive\"]]}],\"limit\":null}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		readsWithin(t, append([]byte("{"), data...))
		readsWithin(t, data)
	})
}

func FuzzPickle(f *testing.F) {
	sample, err := os.ReadFile("testdata/sample_with_stacks.pickle")
	require.NoError(f, err)
	f.Add(sample)
	f.Add(pickled(snapshot(entry("alloc", 4<<20, 100))))
	f.Add(pickled(snapshot(dict{"action", "oom", "device_free", 5, "size", 1024, "stream", 3})))
	f.Fuzz(func(t *testing.T, data []byte) {
		if !bytes.HasPrefix(data, []byte{0x80}) {
			data = append([]byte{0x80, 4}, data...)
		}
		readsWithin(t, data)
	})
}
