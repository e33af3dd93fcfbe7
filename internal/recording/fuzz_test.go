package recording

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var fuzzLimits = Limits{Bytes: 1 << 16, Records: 200, Depth: 16, String: 256}

// check requires of whatever was read that it keeps to the limits, and that a program can be made of it or not, without a
// panic.
func check(t *testing.T, list []*Recording, err error) {
	if err != nil {
		require.Less(t, len(err.Error()), 2000)
		return
	}
	entries := 0
	for _, r := range list {
		entries += len(r.Entries)
		for _, e := range r.Entries {
			require.Positive(t, e.Size)
			require.Less(t, e.Size, int64(maxSize))
		}
		p, err := NewProgram(r)
		if err != nil {
			continue
		}
		at := 0
		for i := range p.Steps { // the steps tile the entries
			s := &p.Steps[i]
			require.EqualValues(t, at, s.From)
			switch {
			case s.Kind == StepEmpty:
				at = int(s.To)
			case s.Kind == StepFree && s.Completed == s.Entry+1 && !s.Later:
				at = int(s.Entry) + 2
			default:
				at = int(s.Entry) + 1
			}
		}
		require.Equal(t, len(r.Entries), at)
	}
	require.LessOrEqual(t, entries, fuzzLimits.Records)
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"conf\":\"\",\"stats\":{}}\n[\"segment_alloc\",4096,2097152,0]\n[\"alloc\",4096,100,0]\n[\"free_requested\",4096,100,0]\n[\"free_completed\",4096,100,0]\n[\"oom\",4096,100,0]\n"))
	f.Add([]byte("{\"segments\":[{\"address\":1,\"total_size\":2,\"stream\":-3,\"blocks\":[[1,2,3,\"inactive\"]]}],\"limit\":null}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := readBytes(append([]byte("{"), data...), fuzzLimits)
		check(t, list, err)
		list, err = readBytes(data, fuzzLimits)
		check(t, list, err)
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
		list, err := readBytes(data, fuzzLimits)
		check(t, list, err)
	})
}
