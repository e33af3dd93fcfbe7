package recording

import (
	"bytes"
	"compress/gzip"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/budget"
)

// readBytes reads a file, and drops its cost.
func readBytes(data []byte, o Options) ([]*Recording, error) {
	list, err := Read(bytes.NewReader(data), "file", o)
	for _, r := range list {
		r.Budget = nil
	}
	return list, err
}

func gzipped(t testing.TB, data []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(data)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

const lines = `{"conf": "x:1", "total_memory": 1000, "limit": 500, "stats": {"num_ooms": 1}, "calls": [["alloc", 1]],
"segments": [{"address": 4096, "total_size": 2097152, "stream": -1, "type": "small", "blocks": [[4096, 2097152, 7, "inactive"]]}]}
["segment_alloc",4096,2097152,0]
["alloc",4096,100,18446744073709551615]
["snapshot",0,100,0]
["oom",77,512,0]
`

func TestLines(t *testing.T) {
	text := strings.Replace(lines, ",\n", ",", 1)
	for _, data := range [][]byte{[]byte(text), gzipped(t, []byte(text)), []byte(strings.ReplaceAll(text, "\n", "\r\n")), []byte(text[:len(text)-1])} {
		list, err := readBytes(data, Options{})
		require.NoError(t, err)
		require.Equal(t, []*Recording{{
			Name: "file", Conf: "x:1", TotalMemory: 1000, Limit: 500, LimitKnown: true, Stats: map[string]int64{"num_ooms": 1},
			Segments: []Segment{{Address: 4096, Size: 2 << 20, Stream: 1<<64 - 1, Blocks: []Block{{4096, 2 << 20, 7, "inactive"}}}},
			Entries: []Entry{
				{Action: SegmentAlloc, Addr: 4096, Size: 2 << 20, Block: -1},
				{Action: Alloc, Addr: 4096, Size: 100, Stream: 1<<64 - 1, Block: -1},
				{Action: OOM, Size: 512, Free: 77, Block: -1},
			},
		}}, list)
	}
	list, err := readBytes([]byte(`{"limit": null}`), Options{})
	require.NoError(t, err)
	require.Equal(t, []*Recording{{Name: "file", LimitKnown: true}}, list)
	list, err = readBytes([]byte(`{}`), Options{})
	require.NoError(t, err)
	require.Equal(t, []*Recording{{Name: "file"}}, list)
}

func TestSnapshot(t *testing.T) {
	oom := dict{"action", "oom", "device_free", 5, "size", 1024, "stream", 3}
	list, err := readBytes(gzipped(t, pickled(snapshot(entry("segment_map", 4<<20, 2<<20), entry("alloc", 4<<20, 100), entry("snapshot", 0, 0), oom))), Options{})
	require.NoError(t, err)
	require.Equal(t, []*Recording{{
		Name: "file", Conf: "max_split_size_mb:64",
		Settings: &Settings{MaxSplitSize: 64 << 20, GarbageCollectionThreshold: 0.5, ExpandableSegments: true,
			RoundupPower2Divisions: [16]int64{1: 4, 15: 8}},
		Segments: []Segment{{Address: 4 << 20, Size: 2 << 20, Stream: 1<<64 - 1, Blocks: []Block{
			{4 << 20, 512, 100, "active_allocated"}, {4<<20 + 512, 2<<20 - 512, 0, "inactive"},
		}}},
		Entries: []Entry{
			{Action: SegmentMap, Addr: 4 << 20, Size: 2 << 20, Stream: 1<<64 - 1, Block: -1},
			{Action: Alloc, Addr: 4 << 20, Size: 100, Stream: 1<<64 - 1, Block: -1},
			{Action: OOM, Size: 1024, Stream: 3, Free: 5, Block: -1},
		},
	}}, list)
}

func TestSnapshotOfSeveralDevices(t *testing.T) {
	s := snapshot(entry("alloc", 4<<20, 100))
	s[3] = []any{[]any{}, []any{entry("alloc", 4096, 1)}, []any{entry("alloc", 8192, 2), entry("free_requested", 8192, 2)}}
	s[1] = append(s[1].([]any), dict{"device", 2, "address", 8192, "total_size", 512, "stream", 0, "segment_pool_id", tuple{0, 3}})
	list, err := readBytes(pickled(s), Options{})
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, []string{"file[0]", "file[1]"}, []string{list[0].Name, list[1].Name})
	require.Empty(t, list[0].Segments)
	require.False(t, list[0].PrivatePools)
	require.Len(t, list[1].Entries, 2)
	require.Equal(t, []Segment{{Address: 8192, Size: 512, Pool: 1, Blocks: []Block{}}}, list[1].Segments)
	require.True(t, list[1].PrivatePools)
}

// TestPyTorchsOwn reads files of PyTorch.
func TestPyTorchsOwn(t *testing.T) {
	for file, entries := range map[string]int{"sample_with_stacks.pickle": 12, "mnist_mlp.pickle.gz": 8764} {
		f, err := os.Open(filepath.Join("testdata", file))
		require.NoError(t, err)
		defer f.Close()
		list, err := Read(f, file, Options{})
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Len(t, list[0].Entries, entries)
		require.NotEmpty(t, list[0].Segments)
		require.Equal(t, &Settings{MaxSplitSize: -1}, list[0].Settings)
		_, err = NewProgram(list[0])
		require.NoError(t, err)
	}
}

var fullSize = flag.Bool("long", false, "hostile files of full size")

// TestHostile: files with every kind of fault get an error that names it, soon and without much
// memory.
func TestHostile(t *testing.T) {
	deep := func(open, shut string) []byte {
		return []byte(`{"x":` + strings.Repeat(open, 1_000_000) + strings.Repeat(shut, 1_000_000) + "}")
	}
	large := 8 << 20
	if *fullSize {
		large = 80 << 20
	}
	good := pickled(snapshot(entry("alloc", 4<<20, 100)))
	header := "{}\n"
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"nothing":            {nil, "truncated"},
		"neither form":       {[]byte("hello"), "neither JSON lines nor a pickle"},
		"protocol 0":         {[]byte("(dp0\n."), "neither JSON lines nor a pickle"},
		"a gzip header":      {[]byte{0x1f, 0x8b, 8}, "truncated"},
		"half a gzip":        {gzipped(t, good)[:50], "truncated"},
		"a gzip bomb":        {gzipped(t, append([]byte(`{"conf":"`), bytes.Repeat([]byte("a"), large)...)), "the file costs too much"},
		"a pickle bomb":      {gzipped(t, append([]byte{0x80, 2}, bytes.Repeat([]byte("]"), large)...)), "the file costs too much"},
		"many marks":         {append([]byte{0x80, 2}, bytes.Repeat([]byte("("), 1_000_000)...), "more than 64 nested values"},
		"deep lists":         {append(append([]byte{0x80, 2, ']'}, bytes.Repeat([]byte{0x85}, 1_000_000)...), '.'), "the file costs too much"},
		"deep JSON lists":    {deep("[", "]"), "the file costs too much"},
		"deep JSON objects":  {deep(`{"x":`, "}"), ""},
		"a header of 1 line": {[]byte("{\"conf\": 7}\n"), "line 1: the header"},
		"half a header":      {[]byte(`{"conf": "`), "line 1: the header"},
		"a limit":            {[]byte(`{"limit": "all"}`), `limit is "all"`},
		"a memory":           {[]byte(`{"total_memory": -5}`), "total_memory is -5"},
		"a block":            {[]byte(`{"segments": [{"blocks": [[1, 2]]}]}`), "a block of the header has 2 values"},
		"half a line":        {[]byte(header + `["alloc",40`), "line 2: unexpected end"},
		"a line of 3":        {[]byte(header + `["alloc",4096,100]`), "line 2: 3 values"},
		"a line of 5":        {[]byte(header + `["alloc",4096,100,0,0]`), "line 2: 5 values"},
		"a word":             {[]byte(header + `["alloc","x",100,0]`), "line 2: json"},
		"2^60 bytes":         {[]byte(header + `["alloc",4096,1152921504606846976,0]`), "1152921504606846976 bytes: sizes are 1 to 2^60-1"},
		"no bytes":           {[]byte(header + `["alloc",4096,0,0]`), "0 bytes"},
		"less than nothing":  {[]byte(header + `["alloc",4096,-1,0]`), "-1 bytes"},
		"address 0":          {[]byte(header + `["alloc",0,1,0]`), "at the address 0x0"},
		"address 2^63":       {[]byte(header + `["alloc",9223372036854775808,1,0]`), "at the address 0x8000000000000000"},
		"a long line":        {[]byte(header + `["alloc",4096,1,` + strings.Repeat(" ", 5000) + `0]`), "more than 4096 bytes in an entry"},
		"a class":            {[]byte("\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR."), "opcode 0x63 at byte 2, which names a class"},
		"a class, stacked":   {[]byte("\x80\x04\x8c\x02os\x8c\x06system\x93."), "opcode 0x93"},
		"an extension":       {[]byte("\x80\x02\x82\x01."), "opcode 0x82"},
		"opcode 255":         {[]byte{0x80, 2, 0xff}, "opcode 0xff"},
		"protocol 9":         {[]byte{0x80, 9, '.'}, "protocol 9"},
		"half a pickle":      {good[:len(good)-20], "truncated"},
		"no stop":            {good[:len(good)-1], "truncated"},
		"an empty stack":     {[]byte{0x80, 2, '.'}, "corrupt"},
		"no mark":            {[]byte{0x80, 2, ']', 'e', '.'}, "corrupt"},
		"an odd dict":        {[]byte{0x80, 2, '}', '(', 'N', 'u', '.'}, "corrupt"},
		"a long of 0":        {[]byte{0x80, 2, 0x8a, 0, '.'}, "corrupt"},
		"a frame":            {[]byte{0x80, 4, 0x95, 255, 255, 255, 255, 255, 255, 255, 127, '.'}, "corrupt"},
		"a string":           {[]byte{0x80, 4, 0x8d, 255, 255, 255, 255, 255, 255, 255, 127, '.'}, "more than 1048576 bytes in a string"},
		"a list on top":      {pickled([]any{}), "the snapshot is a list; want a dict"},
		"no history":         {pickled(snapshot()), "_record_memory_history"},
		"no traces":          {pickled(dict{}), "_record_memory_history"},
		"a trace":            {pickled(dict{"device_traces", []any{7}}), "device_traces[0] is an integer; want a list"},
		"an entry":           {pickled(snapshot("x")), "device_traces[0][0] is a string; want a dict"},
		"many keys":          {manyKeys('s'), "more than 512 keys in a dict"},
		"many keys at once":  {manyKeys('u'), "more than 512 keys in a dict"},
		"an entry again":     {entryAgain(), "an entry is changed after it was read"},
		"an entry without":   {pickled(snapshot(dict{"action", "alloc"})), "device_traces[0][0]: addr is None; want an integer"},
		"a huge entry":       {pickled(snapshot(entry("alloc", 4096, 1<<60))), "sizes are 1 to 2^60-1"},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := readBytes(c.data, Options{Limits: budget.Limits{MaxWork: int64(large) / 4 * 3, MaxMemory: 20 << 20}})
			require.ErrorContains(t, err, "file: ")
			require.ErrorContains(t, err, c.want)
			require.Less(t, len(err.Error()), 400)
			require.Less(t, time.Since(start), 20*time.Second)
		})
	}
}

// TestSharedValues: a value that a pickle names many times does not evade the limits.
func TestSharedValues(t *testing.T) {
	p := &pickler{b: []byte{0x80, 4, '}', '('}}
	p.put("device_traces")
	p.b = append(p.b, ']', '(')
	// One trace with 100 entries, 100 times.
	var entries []any
	for range 100 {
		entries = append(entries, entry("alloc", 4096, 1))
	}
	p.put(entries)
	p.b = append(p.b, 0x94)
	for range 99 {
		p.b = append(p.b, 'h', 0)
	}
	p.b = append(p.b, 'e', 'u', '.')
	list, err := readBytes(p.b, Options{})
	require.NoError(t, err)
	require.Len(t, list, 100)
	list[0].Entries[0].Block = 7
	require.EqualValues(t, -1, list[1].Entries[0].Block, "each has its own")
	_, err = readBytes(p.b, Options{Limits: budget.Limits{MaxMemory: 10_000 * entryMemory}})
	require.ErrorIs(t, err, budget.ErrExceeded, "each of them is charged")
}

// TestPickleMemory: the memory for a pickle's values is bounded, whatever they are. Entries that
// were read, and their frames, need little.
func TestPickleMemory(t *testing.T) {
	limits := Options{Limits: budget.Limits{MaxMemory: 1 << 20}}
	for name, value := range map[string]string{"integers": "J1234", "strings": "\x8c\x01a", "memos": "N\x940", "lists": "]",
		"tuples": "N\x85", "long integers": "\x8a\x09123456780", "frames of nothing": "](NNNNNNNNe"} {
		data := "\x80\x04](" + strings.Repeat(value, 200_000) + "e."
		_, err := readBytes([]byte(data), limits)
		require.ErrorIs(t, err, budget.ErrExceeded, name)
	}

	const n = 2000
	frames := make([]any, 50)
	var entries []any
	for range n {
		e := entry("alloc", 4096, 1)
		e[len(e)-1] = frames
		entries = append(entries, e)
	}
	// Without memo opcodes, strings are separate values.
	list, err := readBytes(pickled(snapshot(entries...)), limits)
	require.NoError(t, err)
	require.Len(t, list[0].Entries, n)
}

// TestBudget: the bytes of a file count as work after decompression, and raise the default limits.
// A small file that expands to a large one raises them only as far as its size allows.
func TestBudget(t *testing.T) {
	text := strings.Replace(lines, ",\n", ",", 1)
	data := gzipped(t, []byte(text))
	work := int64(len(text)) + lineWork*int64(strings.Count(text, "\n")-1)
	_, err := readBytes(data, Options{Limits: budget.Limits{MaxWork: work}})
	require.NoError(t, err)
	_, err = readBytes(data, Options{Limits: budget.Limits{MaxWork: work - 1}})
	require.ErrorIs(t, err, budget.ErrExceeded)
	require.ErrorContains(t, err, "--max-work")

	if testing.Short() {
		return
	}
	many := []byte("{}\n" + strings.Repeat("[\"alloc\",123456789012,1024,0]\n", 2_500_000))
	_, err = readBytes(gzipped(t, many), Options{})
	require.ErrorIs(t, err, budget.ErrExceeded)
	require.ErrorContains(t, err, "more than 256 MiB of memory; raise --max-memory")
	list, err := readBytes(many, Options{})
	require.NoError(t, err)
	require.Len(t, list[0].Entries, 2_500_000)
}

// TestWhatNoProgramWrites: values that no recording has are refused.
func TestWhatNoProgramWrites(t *testing.T) {
	for _, text := range []string{
		"{}\n[\"alloc\"," + strings.Repeat(" ", maxLine) + "4096,1,0]\n",
		`{"conf":"` + strings.Repeat("a", maxString+1) + "\"}\n",
		`{"device_traces":[[{"action":"` + strings.Repeat("a", 5*maxString) + `"}]]}`,
		`{"device_traces":` + strings.Repeat("[", maxDepth+1),
		"\x80\x04" + strings.Repeat("(", maxDepth+1),
		"\x80\x04X\x01\x00\x10\x00",
	} {
		_, err := readBytes([]byte(text), Options{})
		require.ErrorContains(t, err, "no recording has so many")
	}
}

// manyKeys returns a pickle of a dict with 100,000 keys, set one at a time or all at once. Each key
// would be compared with all others.
func manyKeys(code byte) []byte {
	p := &pickler{b: []byte{0x80, 2, '}'}}
	if code == 'u' {
		p.b = append(p.b, '(')
	}
	for i := range 100_000 {
		p.put(i)
		p.put(nil)
		if code == 's' {
			p.b = append(p.b, 's')
		}
	}
	if code == 'u' {
		p.b = append(p.b, 'u')
	}
	return append(p.b, '.')
}

// entryAgain returns a pickle of a dict that becomes an entry twice, so that its cost would be
// refunded twice.
func entryAgain() []byte {
	p := &pickler{b: []byte{0x80, 2, '}'}}
	for range 2 {
		p.b = append(p.b, '(')
		for _, v := range entry("alloc", 4096, 1) {
			p.put(v)
		}
		p.b = append(p.b, 'u')
	}
	return append(p.b, '.')
}
