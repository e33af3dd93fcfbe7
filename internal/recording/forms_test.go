package recording

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/budget"
)

// TestUnknownActions: entries of other versions are counted and left out, in each form.
func TestUnknownActions(t *testing.T) {
	const note = `2 entries with the unknown action "steal" were skipped`
	const header = `{"conf":""}` + "\n"
	lines := header + "[\"steal\",4096,100,0]\n[\"alloc\",4096,100,0]\n[\"steal\",0,0,0]\n[\"snapshot\",0,0,0]\n"
	pickle := pickled(snapshot(entry("steal", 4096, 100), entry("alloc", 4096, 100), entry("steal", 0, 0), entry("snapshot", 0, 0)))
	for name, data := range map[string][]byte{"lines": []byte(lines), "pickle": pickle} {
		list, err := readBytes(data, Options{})
		require.NoError(t, err, name)
		require.Len(t, list[0].Entries, 1, name)
		require.Equal(t, []string{note}, list[0].Notes, name)
	}
}

// asJSON returns a value of the tests' pickles as JSON, in which tuples are lists.
func asJSON(v any) any {
	switch v := v.(type) {
	case dict:
		m := make(map[string]any)
		for i := 0; i < len(v); i += 2 {
			m[v[i].(string)] = asJSON(v[i+1])
		}
		return m
	case tuple:
		return asJSON([]any(v))
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = asJSON(v[i])
		}
		return list
	}
	return v
}

// TestSnapshotAsJSON: a snapshot as JSON equals its pickle, whatever its contents, also indented.
func TestSnapshotAsJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var entries []any
		for range 1 + r.IntN(20) {
			e := entry([]string{"alloc", "free_requested", "steal", "segment_map", "snapshot"}[r.IntN(5)], 1+r.Int64N(1<<40), int64(1+r.IntN(1<<30)))
			e = append(e, "frames", []any{dict{"name", "f", "filename", "x.py", "line", r.IntN(9)}}, "user_metadata", "m", "time_us", r.Int64N(1<<50))
			entries = append(entries, e)
		}
		s := snapshot(entries...)
		s[1] = append(s[1].([]any), dict{"device", 0, "address", uint64(1 << 62), "total_size", 512, "stream", -1, "segment_pool_id", tuple{0, 3},
			"segment_type", "small", "is_expandable", true, "blocks", []any{}})
		s = append(s, "host_traces", []any{[]any{dict{"action", "alloc"}}})
		limits := Options{Details: r.IntN(2) == 0}
		want, err := readBytes(pickled(s), limits)
		require.NoError(t, err)
		require.Contains(t, want[0].Notes, "1 entries about pinned host memory (host_traces) were skipped")
		text, err := json.Marshal(asJSON(s))
		if r.IntN(2) == 0 {
			text, err = json.MarshalIndent(asJSON(s), "", " ")
		}
		require.NoError(t, err)
		got, err := readBytes(text, limits)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestFormsOfJSON: files that begin with a brace are distinguished by their keys.
func TestFormsOfJSON(t *testing.T) {
	for name, c := range map[string]struct{ text, err string }{
		"memory_snapshot":     {`[{"device":0,"address":4096,"total_size":512,"stream":0,"blocks":[]}]`, "the snapshot has no history"},
		"no history":          {`{"segments":[{"device":0,"address":4096,"total_size":512,"stream":0,"blocks":[{"address":4096,"size":512,"requested_size":1,"state":"inactive"}]}],"device_traces":[[]]}`, "the snapshot has no history"},
		"cut":                 {`{"device_traces":[[{"action":"alloc"`, "the file is truncated"},
		"deep":                {`{"device_traces":` + strings.Repeat("[", 100), "more than 64 nested values"},
		"a word":              {`{"device_traces":x}`, "the JSON at byte"},
		"traces of the wrong": {`{"device_traces":{"a":1}}`, "device_traces is a dict; want a list"},
	} {
		_, err := readBytes([]byte(c.text), Options{})
		require.ErrorContains(t, err, c.err, name)
		require.NotContains(t, err.Error(), "Go struct field", name)
	}
	for _, lines := range []string{
		`{"segments":[{"address":4096,"total_size":512,"stream":0,"blocks":[[4096,512,1,"inactive"]]}]}` + "\n",
		`{"segments":[],"stats":{}}` + "\n", `{}` + "\n",
	} {
		list, err := readBytes([]byte(lines+`["alloc",4096,1,0]`), Options{})
		require.NoError(t, err, lines)
		require.Len(t, list[0].Entries, 1)
	}
}

// TestZstd: a file that is compressed by zstd equals the plain one, and its limits hold.
func TestZstd(t *testing.T) {
	plain := pickled(snapshot(entry("alloc", 4096, 100)))
	want, err := readBytes(plain, Options{})
	require.NoError(t, err)
	w, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	got, err := readBytes(w.EncodeAll(plain, nil), Options{})
	require.NoError(t, err)
	require.Equal(t, want, got)
	bomb := w.EncodeAll(append([]byte("{}\n"), bytes.Repeat([]byte("[\"oom\",0,1,0]\n"), 1<<20)...), nil)
	require.Less(t, len(bomb), 1<<20)
	_, err = readBytes(bomb, Options{Limits: budget.Limits{MaxWork: 1 << 20}})
	require.ErrorIs(t, err, budget.ErrExceeded)
	_, err = readBytes(bomb[:20], Options{})
	require.Error(t, err)
}

// TestSnapshotOf113: PyTorch 1.13 records the request of a block only in its history.
func TestSnapshotOf113(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "torch113.base64"))
	require.NoError(t, err)
	file, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	list, err := readBytes(file, Options{})
	require.NoError(t, err)
	require.Equal(t, []Block{{0x7f0000000000, 2 << 20, 2_000_000, "active_allocated"}, {0x7f0000200000, 18 << 20, unknownSize, "inactive"}}, list[0].Segments[0].Blocks)
	p, err := NewProgram(list[0])
	require.NoError(t, err)
	require.Empty(t, p.Contradiction)
	require.Nil(t, p.Start, "the driver's call is in the history")
}

// TestDevicesWithoutHistory are noted.
func TestDevicesWithoutHistory(t *testing.T) {
	s := snapshot(entry("alloc", 4<<20, 100))
	s[1] = append(s[1].([]any), dict{"device", 2, "address", 8192, "total_size", 512, "stream", 0}, dict{"device", 2, "address", 9216, "total_size", 512, "stream", 0})
	list, err := readBytes(pickled(s), Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"device 2 has 2 segments but no history: skipped"}, list[0].Notes)
}

// TestUnknownSettings: allocator settings of later versions are noted unless they are off.
func TestUnknownSettings(t *testing.T) {
	s := snapshot(entry("alloc", 4<<20, 100))
	for i := 0; i < len(s); i += 2 {
		if s[i] == "allocator_settings" {
			s[i+1] = append(s[i+1].(dict), "magic", true, "level", 3, "off", false, "none", nil, "zero", 0.0, "list", []any{1},
				"pinned_free_catch_all", true, "throw_on_cudamalloc_oom", true)
		}
	}
	list, err := readBytes(pickled(s), Options{})
	require.NoError(t, err)
	var want []string
	for _, name := range []string{"magic = true", "level = 3", "list"} {
		want = append(want, "the allocator setting "+name+" is unknown and ignored")
	}
	require.Equal(t, want, list[0].Notes)
	list, err = readBytes(pickled(dict{"device_traces", []any{[]any{entry("alloc", 4096, 1)}}, "allocator_settings", dict{"PYTORCH_ALLOC_CONF", "max_split_size_mb:64"}}), Options{})
	require.NoError(t, err)
	require.Equal(t, "max_split_size_mb:64", list[0].Conf)
}
