package safetensors

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// TestWriteAsPyTorch: files that safetensors.torch has written are read and written byte-identical.
func TestWriteAsPyTorch(t *testing.T) {
	folder := filepath.Join("..", "testdata", "reference")
	if name := os.Getenv("CISTERN_REFERENCE"); name != "" {
		folder = name
	}
	paths, err := filepath.Glob(filepath.Join(folder, "models", "*.safetensors"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	rt := open(t)
	for _, path := range paths {
		f, err := Open(path)
		require.NoError(t, err)
		var all []Named
		for _, info := range f.Tensors() {
			x, err := f.Load(ctx, rt, info.Name)
			require.NoError(t, err)
			assert.Equal(t, append([]int{}, info.Shape...), append([]int{}, x.Shape()...))
			all = append(all, Named{info.Name, x})
		}
		require.NotEmpty(t, all)
		var out bytes.Buffer
		require.NoError(t, Write(ctx, &out, all, f.Metadata()))
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, out.Bytes()), path)
		for _, x := range all {
			require.NoError(t, x.Release())
		}
		require.NoError(t, f.Close())
	}
}

func TestWriteFile(t *testing.T) {
	rt := open(t)
	path := filepath.Join(t.TempDir(), "m.safetensors")
	large := make([]float64, 300_000)
	for i := range large {
		large[i] = float64(i)
	}
	tensors := []Named{
		{"b <&>", upload(t, rt, []int32{1, 2})}, {"a", upload(t, rt, []uint8{9})}, {"z\n", upload(t, rt, large, 3, 100_000)},
		{"long", upload(t, rt, []int64{-1}, 1, 1)}, {"none", upload(t, rt, []float32{}, 0, 3)},
	}
	require.NoError(t, os.WriteFile(path+".tmp", []byte("another program's"), 0o600))
	require.NoError(t, WriteFile(ctx, path, tensors, map[string]string{"k": "v\""}))
	f, err := Open(path)
	require.NoError(t, err)
	assert.Zero(t, f.parts[0].from%8, "the data is aligned")
	for _, info := range f.Tensors() {
		assert.Zero(t, info.Begin%max(1, sizes[rank(info.Dtype)].size), "%s is aligned", info.Name)
	}
	assert.Equal(t, map[string]string{"k": "v\""}, f.Metadata())
	x, err := f.Load(ctx, rt, "z\n")
	require.NoError(t, err)
	assert.Equal(t, large, read[float64](t, x))
	require.NoError(t, x.Release())
	require.NoError(t, f.Close())

	before, err := os.ReadFile(path)
	require.NoError(t, err)
	released, err := rt.Zeros(ctx, tensor.Float32, 1)
	require.NoError(t, err)
	require.NoError(t, released.Release())
	for name, wrong := range map[string][]Named{
		"twice": {tensors[0], tensors[0]}, "released": {{"x", released}}, "nil": {{"x", nil}}, "metadata": {{"__metadata__", tensors[0].Tensor}},
		"no UTF-8": {{"\xff", tensors[0].Tensor}},
	} {
		require.ErrorIs(t, WriteFile(ctx, path, wrong, nil), ErrInvalid, name)
	}
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(before, after), "the old file stays when the new one can't be written")
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 2, "nothing else is left")
	other, err := os.ReadFile(path + ".tmp")
	require.NoError(t, err)
	assert.Equal(t, "another program's", string(other))
	require.Error(t, WriteFile(ctx, filepath.Join(path, "x"), tensors, nil))
	require.ErrorIs(t, WriteFile(ctx, filepath.Dir(path), tensors, nil), ErrInvalid, "a folder")
	full := errors.New("full")
	require.ErrorIs(t, Write(ctx, failing{full}, tensors, nil), full)
}

// TestReplace: a private file stays private. A link is neither followed nor replaced, nor is a
// device.
func TestReplace(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("permissions and links of its own")
	}
	folder := t.TempDir()
	path, link, device := filepath.Join(folder, "m"), filepath.Join(folder, "latest"), filepath.Join(folder, "null")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	require.NoError(t, os.Symlink("m", link))
	require.NoError(t, os.Symlink(os.DevNull, device))
	for _, name := range []string{link, device, os.DevNull, folder} {
		require.ErrorIs(t, WriteFile(ctx, name, nil, nil), ErrInvalid, name)
	}
	left, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "old", string(left))
	to, err := os.Readlink(link)
	require.NoError(t, err)
	assert.Equal(t, "m", to)
	require.NoError(t, WriteFile(ctx, path, nil, nil))
	s, err := os.Lstat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), s.Mode())
}

// TestWritersOfOnePath: the file is that of one of the writers, whatever else is in the folder.
func TestWritersOfOnePath(t *testing.T) {
	rt := open(t)
	folder := t.TempDir()
	path := filepath.Join(folder, "m")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "other"), []byte("other"), 0o600))
	if runtime.GOOS != "windows" {
		require.NoError(t, os.Symlink("other", path+".tmp"))
	}
	var wait sync.WaitGroup
	for writer := range 4 {
		values := slices.Repeat([]float32{float32(writer)}, 1<<18)
		x := upload(t, rt, values)
		wait.Go(func() {
			for range 5 {
				if err := WriteFile(ctx, path, []Named{{"x", x}}, nil); err != nil && runtime.GOOS != "windows" {
					t.Error(err) // another writer's rename may be under way there
				}
			}
		})
	}
	wait.Wait()
	f, err := Open(path)
	require.NoError(t, err)
	x, err := f.Load(ctx, rt, "x")
	require.NoError(t, err)
	values := read[float32](t, x)
	require.Equal(t, slices.Repeat(values[:1], 1<<18), values)
	require.NoError(t, errors.Join(x.Release(), f.Close()))
	other, err := os.ReadFile(filepath.Join(folder, "other"))
	require.NoError(t, err)
	require.Equal(t, "other", string(other))
}

type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, f.error }

// TestNilArguments are errors, and leave no file. Nil options are ignored.
func TestNilArguments(t *testing.T) {
	rt := open(t)
	path := filepath.Join(t.TempDir(), "x.safetensors")
	x, err := tensor.FromSlice(ctx, rt, []float32{1})
	require.NoError(t, err)
	require.NoError(t, WriteFile(ctx, path, []Named{{"x", x}}, nil))
	f, err := Open(path, nil)
	require.NoError(t, err)
	var none context.Context
	_, noReader := New(nil, 100)
	_, noContext := f.Load(none, rt, "x")
	_, noRuntime := f.Load(ctx, nil, "x")
	for name, err := range map[string]error{
		"New": noReader, "Load without a context": noContext, "Load without a runtime": noRuntime, "LoadInto without a tensor": f.LoadInto(ctx, "x", nil),
		"LoadInto without a context": f.LoadInto(none, "x", x), "Write without a context": Write(none, io.Discard, []Named{{"x", x}}, nil),
		"Write of nothing without a context": Write(none, io.Discard, nil, nil), "Write without a writer": Write(ctx, nil, nil, nil),
		"Write of nil": Write(ctx, io.Discard, []Named{{"x", nil}}, nil), "Write of no function": Write(ctx, io.Discard, nil, nil, Streamed{Name: "x"}),
		"WriteFile without a context": WriteFile(none, path+"2", []Named{{"x", x}}, nil),
	} {
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	_, err = os.Stat(path + "2")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, errors.Join(f.Close(), (*File)(nil).Close(), x.Release()))
}
