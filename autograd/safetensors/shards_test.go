package safetensors

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// sharded is a folder with two shards and an index of this text.
func sharded(t *testing.T, index string) string {
	folder := t.TempDir()
	first := file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3)
	copy(first[len(first)-3:], []byte{1, 2, 3})
	second := file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2)
	copy(second[len(second)-2:], []byte{4, 5})
	index1 := filepath.Join(folder, "m.safetensors.index.json")
	for path, text := range map[string][]byte{filepath.Join(folder, "1.safetensors"): first, filepath.Join(folder, "2.safetensors"): second, index1: []byte(index)} {
		require.NoError(t, os.WriteFile(path, text, 0o600))
	}
	return index1
}

// TestShards: each tensor is read from its shard in the index, and from no other.
func TestShards(t *testing.T) {
	path := sharded(t, `{"metadata":{"total_size":4,"more":[{}]},"weight_map":{"c":"2.safetensors","a":"1.safetensors","b":"1.safetensors"}}`)
	f, err := Open(path)
	require.NoError(t, err)
	require.Equal(t, []Info{{"a", "U8", []int{2}, 0, 2}, {"b", "U8", []int{1}, 2, 1}, {"c", "U8", []int{1}, 1, 1}}, f.Tensors())
	require.Empty(t, f.Metadata())
	for name, want := range map[string][]byte{"a": {1, 2}, "b": {3}, "c": {5}} {
		r, err := f.Reader(name)
		require.NoError(t, err)
		got, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	x, err := f.Load(ctx, open(t), "c")
	require.NoError(t, err)
	require.Equal(t, []uint8{5}, read[uint8](t, x))
	require.NoError(t, x.Release())
	require.NoError(t, f.Close())
	r, err := f.Reader("c")
	require.NoError(t, err)
	_, err = io.ReadAll(r)
	require.ErrorIs(t, err, os.ErrClosed, "all shards are closed")
	require.NoError(t, f.Close(), "a second time")
}

// TestRefuseShards: invalid indices, and shards that contradict the index, are refused.
func TestRefuseShards(t *testing.T) {
	opened := func() int {
		all, _ := os.ReadDir("/proc/self/fd") // of Linux alone
		return len(all)
	}
	before := opened()
	for index, want := range map[string]string{
		``:                       "the index: EOF",
		`[]`:                     "want an object",
		`{"weight_map":{}}`:      "no weight_map, or an empty one",
		`{"metadata":{}}`:        "no weight_map, or an empty one",
		`{"weight_map":["a"]`:    "want an object",
		`{"weight_map":{"a":1}}`: `the shard of "a" is not a string`,
		`{"weight_map":{"a":"1.safetensors"},"weight_map":{"a":"2.safetensors"}}`: "two weight_maps",
		`{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}`:                `"a" appears twice in the index`,
		`{"weight_map":{"a":"1.safetensors","c":"1.safetensors"}}`:                `shard "1.safetensors" lacks 1 of the tensors that the index places there, such as "c"`,
		`{"weight_map":{"a":"m.safetensors.index.json"}}`:                         "not a safetensors file",
	} {
		_, err := Open(sharded(t, index))
		require.ErrorIs(t, err, ErrFormat, index)
		require.ErrorContains(t, err, want, index)
	}
	for _, shard := range []string{"../1.safetensors", "/1.safetensors", "..", ".", "", "x/1.safetensors", `x\\1.safetensors`, "x/../1.safetensors", "./1.safetensors"} {
		path := sharded(t, fmt.Sprintf(`{"weight_map":{"a":"%s"}}`, shard))
		require.NoError(t, os.Mkdir(filepath.Join(filepath.Dir(path), "x"), 0o700))
		_, err := Open(path)
		require.ErrorIs(t, err, ErrFormat, shard)
		require.ErrorContains(t, err, "want the name of a file beside the index", shard)
	}
	_, err := Open(sharded(t, `{"weight_map":{"a":"1.safetensors","b":"3.safetensors","c":"3.safetensors"}}`))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, `shard "3.safetensors", which has 2 of the tensors: `)
	_, err = Open(sharded(t, `{"weight_map":{"a":"1.safetensors"}}`), MaxHeader(35))
	require.ErrorContains(t, err, "the index has 36 bytes, more than the limit of 35; see MaxHeader")
	path := sharded(t, `{}`)
	_, err = Open(filepath.Join(filepath.Dir(path), "none.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, before, opened(), "files are open after an error")
}
