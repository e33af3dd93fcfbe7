package recording

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// own is a recording of ours with one of everything.
var own = strings.Join([]string{
	`{"format":"cistern recording 1","start":1000000,"initial":1,"conf":"exact:True","total_memory":1000,"limit":null}`,
	`["segment_alloc",4096,2097152,3,0]`,
	`{"label":0,"module":"encoder.0","category":"activation","tags":"run=7"}`,
	`{"frame":0,"function":"main.train","file":"/src/train.go","line":17}`,
	`{"frame":1,"function":"main.main","file":"/src/train.go","line":3}`,
	`{"stack":0,"frames":[0,1]}`,
	`{"mark":0,"name":"step","step":17,"time":4}`,
	`["miss",0,512,3,5]`,
	`["alloc",4096,100,3,5,0,512,0,17,9,1]`,
	`["alloc",4608,100,18446744073709551615,6,-1,512]`,
	`["relabel",4608,100,18446744073709551615,6,-1,0,0,3]`,
	`["relabel",99,100,0,6,-1,0,0,3]`,
	`["free",4096,100,3,7,0]`,
	`["oom",77,512,3,8,-1,0,0,17]`,
	`{"end":0,"time":9}`,
	`["free_requested",4608,100,18446744073709551615,10]`,
	`["free_completed",4608,100,18446744073709551615,11]`,
	`{"mark":1,"name":"forward","time":12}`,
	`{"news":0,"from":"a later version"}`,
	`{"stats":{"num_ooms":1},"segments":[{"address":4096,"total_size":2097152,"stream":3,"blocks":[[4096,2097152,0,"inactive"]]}],"details":[[0,0,17,0]]}`,
}, "\n") + "\n"

func TestOwn(t *testing.T) {
	want := &Recording{
		Name: "file", Conf: "exact:True", TotalMemory: 1000, LimitKnown: true, Stats: map[string]int64{"num_ooms": 1}, Own: true, Initial: 1,
		Segments: []Segment{{Address: 4096, Size: 2 << 20, Stream: 3, Blocks: []Block{{4096, 2 << 20, 0, "inactive"}}}},
		start:    1000000,
		Entries: []Entry{
			{Action: SegmentAlloc, Addr: 4096, Size: 2 << 20, Stream: 3, Block: -1},
			{Action: Miss, Size: 512, Stream: 3, Block: -1},
			{Action: Alloc, Addr: 4096, Size: 100, Stream: 3, Bytes: 512, Flags: Grew, Block: -1},
			{Action: Alloc, Addr: 4608, Size: 100, Stream: 1<<64 - 1, Bytes: 512, Block: -1},
			{Action: FreeRequested, Addr: 4096, Size: 100, Stream: 3, Flags: AtOnce, Block: -1},
			{Action: FreeCompleted, Addr: 4096, Size: 100, Stream: 3, Block: -1},
			{Action: OOM, Size: 512, Stream: 3, Free: 77, Block: -1},
			{Action: FreeRequested, Addr: 4608, Size: 100, Stream: 1<<64 - 1, Block: -1},
			{Action: FreeCompleted, Addr: 4608, Size: 100, Stream: 1<<64 - 1, Block: -1},
		},
	}
	list, err := readBytes([]byte(own), Options{})
	require.NoError(t, err)
	require.Equal(t, []*Recording{want}, list)

	want.Details = &Details{
		Start:      time.UnixMicro(1000000),
		Times:      []int64{0, 5, 5, 6, 7, 7, 8, 10, 11},
		Labels:     []int32{-1, -1, 0, 0, -1, -1, 0, -1, -1},
		Stacks:     []int32{-1, -1, 0, -1, 0, -1, -1, -1, -1},
		Steps:      []int64{0, 0, 17, 3, 0, 0, 17, 0, 0},
		Serials:    []uint64{0, 0, 9, 0, 0, 0, 0, 0, 0},
		LabelTable: []Label{{"encoder.0", "activation", "run=7"}},
		StackTable: [][]int32{{0, 1}},
		Frames:     []Frame{{"main.train", "/src/train.go", 17}, {"main.main", "/src/train.go", 3}},
		Final:      []BlockDetail{{Label: 0, Stack: 0, Step: 17}},
		Marks:      []Mark{{Name: StepMark, Step: 17, Start: 4, End: 9, From: 1, To: 7}, {Name: "forward", Start: 12, End: -1, From: 9, To: -1}},
	}
	for _, data := range [][]byte{[]byte(own), gzipped(t, []byte(own))} {
		list, err = readBytes(data, Options{Details: true})
		require.NoError(t, err)
		require.Equal(t, []*Recording{want}, list)
	}
}

// TestOwnCutAnywhere: the part that was written before a program was killed can be read, whatever
// byte was the last.
func TestOwnCutAnywhere(t *testing.T) {
	header := strings.IndexByte(own, '\n') + 1
	whole, err := readBytes([]byte(own), Options{Details: true})
	require.NoError(t, err)
	for n := range len(own) {
		list, err := readBytes([]byte(own[:n]), Options{Details: true})
		if n < header-1 {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err, n)
		require.True(t, list[0].Unfinished)
		got := list[0].Entries
		require.Equal(t, append([]Entry(nil), whole[0].Entries[:len(got)]...), got)
		if n > header {
			// Entries that were begun.
			lines := strings.Count(own[header:n], "\n[") + 1 - strings.Count(own[header:n], "\n[\"r")
			free := strings.Count(own[header:n], "[\"free\"")
			require.GreaterOrEqual(t, len(got), lines+free-2, n)
		}
	}
	zipped := gzipped(t, []byte(own))
	for n := range len(zipped) {
		list, err := readBytes(zipped[:n], Options{Details: true})
		if err == nil {
			require.Equal(t, append([]Entry(nil), whole[0].Entries[:len(list[0].Entries)]...), list[0].Entries)
		}
	}
}

func TestOwnMistakes(t *testing.T) {
	const fit = 100_000 / (entryMemory + detailMemory) // entries
	header := own[:strings.IndexByte(own, '\n')+1]
	for line, want := range map[string]string{
		`["alloc",4096]`:                                  "line 2: 2 values",
		`["alloc",4096,100,0,0,-1,0,0]`:                   "label 0 was not defined",
		`["alloc",4096,100,0,0,0]`:                        "stack 0 was not defined",
		`["alloc",4096,100,0,0,4294967296]`:               "stack 2147483647 was not defined",
		`["alloc",4096,100,0,0,-9]`:                       "stack -2 was not defined",
		`["alloc",4096,100,0,0,-1,99]`:                    "a block of 99 bytes",
		`["free",4096,100,0,0,-1,99]`:                     "a block of 99 bytes",
		`["alloc",1,1,0,1,1,1,1,1,1,1,1]`:                 "at most 10 numbers",
		`["alloc",4096,1e2,0]`:                            `"1e2" is not an integer`,
		`["alloc",4096,,0]`:                               `"" is not an integer`,
		`["alloc" 4096]`:                                  "commas between them",
		`["alloc,4096]`:                                   "is not an entry",
		`["alloc",4096,100,0`:                             "is not an entry",
		`["miss",0,-1,0]`:                                 "miss of -1 bytes",
		`["steal",4096,100,0]`:                            `unknown action "steal"`,
		`{"label":1}`:                                     "label 0 is the next, not 1",
		`{"frame":7}`:                                     "frame 0 is the next",
		`{"stack":0,"frames":[0]}`:                        "frame 0 was not defined",
		`{"stack":1}`:                                     "stack 0 is the next",
		`{"mark":1}`:                                      "mark 0 is the next",
		`{"end":0}`:                                       "the mark 0 did not begin",
		`{"end":-1}`:                                      "the mark -1 did not begin",
		`{"label":"x"}`:                                   "json",
		`{"stats":{}}` + "\n" + `["miss",0,0,0]`:          "line 3: the recording ended",
		`{"stats":{},"details":[[1]]}`:                    "the details of a block have 1 values",
		`{"stats":{},"details":[[1,0,0,0]]}`:              "label 0 was not defined",
		`["miss",0,0,` + strings.Repeat(" ", 5000) + `0]`: "more than 4096 bytes in an entry",
		strings.Repeat("[\"miss\",0,0,0]\n", 600):         "of memory",
		strings.Repeat("[\"miss\",0,0,0]\n", fit-1) + `["free",4096,100,0]`:                         fmt.Sprintf("line %d: the file costs too much", fit+1),
		`{"stats":{},"details":[` + strings.Repeat("[0,-1,0,-1],", 1000) + `[0,-1,0,-1]]}`:          "of memory",
		`{"stats":{},"segments":[` + strings.Repeat(`{"address":1},`, 500) + `{"address":1}]}`:      "of memory",
		`{"label":0,"module":"` + strings.Repeat("m", maxString+1) + `"}`:                           "more than 1048576 bytes in a string",
		`{"label":0,"tags":"` + strings.Repeat("m", maxString+1) + `"}`:                             "more than 1048576 bytes in a string",
		`{"label":0,"category":"` + strings.Repeat("m", maxString+1) + `"}`:                         "more than 1048576 bytes in a string",
		`{"frame":0,"function":"` + strings.Repeat("m", maxString+1) + `"}`:                         "more than 4096 bytes in a name",
		`{"frame":0,"file":"` + strings.Repeat("m", maxString+1) + `"}`:                             "more than 4096 bytes in a name",
		`{"mark":0,"name":"` + strings.Repeat("m", maxString+1) + `"}`:                              "more than 1048576 bytes in a string",
		`{"stats":{"` + strings.Repeat("m", maxString+1) + `":1}}`:                                  "more than 1048576 bytes in a string",
		`{"stats":{},"segments":[{"blocks":[[1,2,3,"` + strings.Repeat("m", maxString+1) + `"]]}]}`: "more than 1048576 bytes in a string",
	} {
		o := Options{Details: true}
		if len(line) < maxString {
			o.MaxMemory = 100_000
		}
		_, err := readBytes([]byte(header+line+"\n"), o)
		require.ErrorContains(t, err, want, line)
	}
	_, err := readBytes([]byte(`{"format":"cistern recording 2"}`), Options{})
	require.ErrorContains(t, err, `the format is "cistern recording 2"; this reads "cistern recording 1"`)
	list, err := readBytes([]byte("{}\n[\"miss\",0,0,0]"), Options{})
	require.NoError(t, err)
	require.Contains(t, list[0].Notes[0], `the unknown action "miss"`, "in a recording of PyTorch")
}

func TestSnapshotDetails(t *testing.T) {
	stack := func(lines ...int) []any {
		var list []any
		for _, n := range lines {
			list = append(list, dict{"name", "f", "filename", "a.py", "line", n})
		}
		return list
	}
	e := func(action string, at int, said string, frames []any) dict {
		return dict{"action", action, "addr", 4 << 20, "size", 100, "stream", 0, "time_us", at, "user_metadata", said, "frames", frames}
	}
	s := snapshot(e("segment_alloc", 1000, "", nil), e("alloc", 1003, "warming up", stack(1, 2)),
		e("free_requested", 1007, "module=fc\nstep=17\nrun=7\ncategory=input", stack(1, 2)), e("free_completed", 1007, "", stack(2)))
	blocks := s[1].([]any)[0].(dict)[11].([]any)
	blocks[0] = append(blocks[0].(dict), "frames", stack(9))
	s = append(s, "external_annotations", []any{
		dict{"name", "a", "stage", "START", "device", 0, "time_us", 1001}, dict{"name", "a", "stage", "START", "device", 0, "time_us", 1004},
		dict{"name", "a", "stage", "END", "device", 0, "time_us", 1005}, dict{"name", "b", "stage", "END", "device", 0, "time_us", 1005}, 7,
		dict{"name", "a", "stage", "END", "device", 9, "time_us", 1006},
	})
	list, err := readBytes(pickled(s), Options{Details: true})
	require.NoError(t, err)
	require.Equal(t, &Details{
		Start:      time.UnixMicro(1000),
		Times:      []int64{0, 3, 7, 7},
		Labels:     []int32{-1, 0, 1, -1},
		Stacks:     []int32{-1, 0, 0, 1},
		Steps:      []int64{0, 0, 17, 0},
		LabelTable: []Label{{Tags: "warming up"}, {"fc", "input", "run=7"}},
		StackTable: [][]int32{{0, 1}, {1}, {2}},
		Frames:     []Frame{{"f", "a.py", 1}, {"f", "a.py", 2}, {"f", "a.py", 9}},
		Final:      []BlockDetail{{Label: -1, Stack: 2}, {Label: -1, Stack: -1}},
		Marks:      []Mark{{Name: "a", Start: 1, End: -1, From: 1, To: -1}, {Name: "a", Start: 4, End: 5, From: 2, To: 2}},
	}, list[0].Details)
	list, err = readBytes(pickled(s), Options{})
	require.NoError(t, err)
	require.Nil(t, list[0].Details)
}

// TestSharedFrames: PyTorch's entries and blocks may share a list of frames, and entries of several
// devices stand in one file.
func TestSharedFrames(t *testing.T) {
	p := &pickler{b: []byte{0x80, 4, '}', '('}}
	p.put("device_traces")
	p.b = append(p.b, ']', '(')
	for dev := range 2 {
		p.b = append(p.b, ']', '(', '}', '(')
		for _, v := range []any{"action", "alloc", "addr", 4096 + dev, "size", 1, "stream", 0, "time_us", 50 + 10*dev, "frames"} {
			p.put(v)
		}
		if dev == 0 {
			p.put([]any{dict{"name", "f", "filename", "a.py", "line", 1}})
			p.b = append(p.b, 0x94)
		} else {
			p.b = append(p.b, 'h', 0)
		}
		p.b = append(p.b, 'u', 'e')
	}
	p.b = append(p.b, 'e')
	p.put("segments")
	p.b = append(p.b, ']', '(', '}', '(')
	for _, v := range []any{"device", 1, "address", 4096, "total_size", 512, "stream", 0, "blocks"} {
		p.put(v)
	}
	p.b = append(p.b, ']', '(', '}', '(')
	for _, v := range []any{"size", 512, "requested_size", 1, "state", "active_allocated", "frames"} {
		p.put(v)
	}
	p.b = append(p.b, 'h', 0, 'u', 'e', 'u', 'e', 'u', '.')
	list, err := readBytes(p.b, Options{Details: true})
	require.NoError(t, err)
	require.Len(t, list, 2)
	for i, r := range list {
		require.Equal(t, []int32{0}, r.Details.Stacks)
		require.Equal(t, time.UnixMicro(int64(50+10*i)), r.Details.Start)
	}
	require.Equal(t, []BlockDetail{{Label: -1, Stack: 0}}, list[1].Details.Final)
}
