package recording

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgram(t *testing.T) {
	e := func(a Action, addr, size int64, stream uint64) Entry {
		entry, ok, err := newEntry(a.String(), uint64(addr), size, stream, false)
		require.True(t, ok)
		require.NoError(t, err)
		return entry
	}
	entries := []Entry{
		e(SegmentAlloc, 4096, 2<<20, 5),
		e(Alloc, 4096, 100, 5),           // 0: hand-out 0
		e(Alloc, 8192, 200, 7),           // 1: hand-out 1
		e(FreeRequested, 4096, 100, 5),   // 2: complete at once
		e(FreeCompleted, 4096, 100, 5),   //
		e(FreeRequested, 8192, 200, 7),   // 3: later
		e(Alloc, 4096, 50, 5),            // 4: hand-out 2
		e(FreeCompleted, 8192, 200, 7),   // inside 5
		e(SegmentFree, 999, 2<<20, 5),    //
		e(OOM, 0, 1024, 9),               // 5
		e(SegmentFree, 999999, 2<<20, 5), // 6: empty_cache
		e(FreeRequested, 4096, 50, 5),    // 7: never complete
	}
	p, err := NewProgram(&Recording{Entries: entries})
	require.NoError(t, err)
	require.Equal(t, []Step{
		{Kind: StepAlloc, Stream: 0, Block: 0, Entry: 1, From: 0, To: 1, Completed: -1},
		{Kind: StepAlloc, Stream: 1, Block: 1, Entry: 2, From: 2, To: 2, Completed: -1},
		{Kind: StepFree, Stream: 0, Block: 0, Entry: 3, From: 3, To: 3, Completed: 4},
		{Kind: StepFree, Later: true, Stream: 1, Block: 1, Entry: 5, From: 5, To: 5, Completed: 7},
		{Kind: StepAlloc, Stream: 0, Block: 2, Entry: 6, From: 6, To: 6, Completed: -1},
		{Kind: StepOOM, Stream: 2, Block: -1, Entry: 9, From: 7, To: 9, Completed: -1},
		{Kind: StepEmpty, Block: -1, Entry: 10, From: 10, To: 11, Completed: -1},
		{Kind: StepFree, Later: true, Stream: 0, Block: 2, Entry: 11, From: 11, To: 11, Completed: -1},
	}, p.Steps)
	require.Equal(t, []uint64{5, 7, 9}, p.Streams)
	require.Equal(t, 3, p.Blocks)
	require.EqualValues(t, 1, p.Inside(&p.Steps[5])[0].Block)
	require.Equal(t, 2, p.Pending)
}

// TestContradictions: contradicting entries are an error that names the entry.
func TestContradictions(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want string
	}{
		"a free of nothing": {`["free_requested",4096,100,0]`, "entry 0: free_requested of 100 bytes at 0x1000: nothing is allocated there"},
		"a second block":    {"[\"alloc\",4096,100,0]\n[\"alloc\",4096,100,0]", "entry 1: alloc of 100 bytes at 0x1000: a block of 100 bytes is there"},
		"a block where one is pending": {"[\"alloc\",4096,100,0]\n[\"free_requested\",4096,100,0]\n[\"alloc\",4096,100,0]",
			"entry 2: alloc of 100 bytes at 0x1000: a block of 100 bytes is there"},
		"a second free":     {"[\"alloc\",4096,100,0]\n[\"free_requested\",4096,100,0]\n[\"free_requested\",4096,100,0]", "entry 2: free_requested of 100 bytes at 0x1000: the block was freed before"},
		"another size":      {"[\"alloc\",4096,100,0]\n[\"free_requested\",4096,101,0]", "the block there has 100 bytes and is of stream 0"},
		"another stream":    {"[\"alloc\",4096,100,0]\n[\"free_requested\",4096,100,1]", "on stream 1: the block there has 100 bytes and is of stream 0"},
		"only a completion": {"[\"alloc\",4096,100,0]\n[\"free_completed\",4096,100,0]", "entry 1: free_completed of 100 bytes at 0x1000: no free is pending there"},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := readBytes([]byte("{}\n"+c.text), Options{})
			require.NoError(t, err)
			_, err = NewProgram(list[0])
			require.ErrorContains(t, err, "file: ")
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestOwnEnds: the entries after the last call of a closed recording are completed frees, or an
// unfinished call.
func TestOwnEnds(t *testing.T) {
	begins := `{"format":"cistern recording 1","conf":""}
["segment_alloc",4096,2097152,3]
["alloc",4096,100,3,0,-1,512,-1,0,1,1]
["free_requested",4096,100,3]
`
	for entry, want := range map[string]string{
		"":                                     "",
		`["free_completed",4096,100,3]` + "\n": "",
		`["miss",0,512,3]` + "\n":              "it ended during a call",
	} {
		for _, last := range []string{"", `{"stats":{}}` + "\n"} {
			list, err := readBytes([]byte(begins+entry+last), Options{})
			require.NoError(t, err)
			p, err := NewProgram(list[0])
			require.NoError(t, err)
			if last == "" {
				require.Empty(t, p.Jumbled, "the file was cut off, too")
			} else {
				require.Equal(t, want, p.Jumbled)
			}
		}
	}
}
