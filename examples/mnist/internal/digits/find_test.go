package digits

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func write(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
}

func TestNamesInUse(t *testing.T) {
	for name, c := range map[string]struct {
		sub, images, labels string
		zip                 bool
	}{
		"the site's":      {"", "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", true},
		"unpacked":        {"", "train-images-idx3-ubyte", "train-labels-idx1-ubyte", false},
		"torchvision":     {"MNIST/raw", "train-images-idx3-ubyte", "train-labels-idx1-ubyte", false},
		"inside MNIST":    {"raw", "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", true},
		"with a dot":      {"", "train-images.idx3-ubyte", "train-labels.idx1-ubyte", false},
		"zipped, no .gz":  {"", "train-images-idx3-ubyte", "train-labels-idx1-ubyte", true},
		"GoMNIST's clone": {"data", "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", true},
	} {
		t.Run(name, func(t *testing.T) {
			images, labels := pictures(2), labelsOf(7, 8)
			if c.zip {
				images, labels = zipped(images), zipped(labels)
			}
			dir := t.TempDir()
			write(t, filepath.Join(dir, c.sub), c.images, images)
			write(t, filepath.Join(dir, c.sub), c.labels, labels)
			d, err := Load(t.Context(), dir, Train)
			require.NoError(t, err)
			assert.Equal(t, []uint8{7, 8}, d.Labels)
		})
	}
}

func TestFilesThatDontFit(t *testing.T) {
	dir := t.TempDir()
	_, err := Load(t.Context(), dir, Test)
	assert.ErrorContains(t, err, "no t10k-images-idx3-ubyte, with or without .gz, in "+dir)
	write(t, dir, "t10k-images-idx3-ubyte", pictures(2))
	_, err = Load(t.Context(), dir, Test)
	assert.ErrorContains(t, err, "has only one of")
	write(t, dir, "t10k-labels-idx1-ubyte", labelsOf(1))
	_, err = Load(t.Context(), dir, Test)
	assert.ErrorContains(t, err, "has 2 images")
	assert.ErrorContains(t, err, "has 1 labels")
	write(t, dir, "t10k-labels-idx1-ubyte", labelsOf(1, 10))
	_, err = Load(t.Context(), dir, Test)
	assert.ErrorContains(t, err, "label 1 is 10: want 0 to 9")
}

// Outside of the source tree, and without a go command, the module cache is searched.
func TestModuleCacheWithoutTheGoCommand(t *testing.T) {
	cache := t.TempDir()
	data := filepath.Join(cache, "github.com", "petar", "!go!m!n!i!s!t@"+dataVersion, "data")
	write(t, data, "train-images-idx3-ubyte.gz", zipped(pictures(1)))
	write(t, data, "train-labels-idx1-ubyte.gz", zipped(labelsOf(4)))
	t.Chdir(t.TempDir())
	t.Setenv("PATH", "")
	t.Setenv("GOMODCACHE", cache)
	d, err := Load(t.Context(), "", Train)
	require.NoError(t, err)
	assert.Equal(t, data, d.Source)

	t.Setenv("GOMODCACHE", t.TempDir())
	_, err = Load(t.Context(), "", Train)
	assert.ErrorContains(t, err, "go mod download "+dataModule)
}

// With a go command but outside of a module, or in another one, the module cache is searched too.
func TestModuleCacheOutsideTheModule(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	d, err := Load(t.Context(), "", Test)
	require.NoError(t, err)
	assert.Equal(t, 10_000, d.Len())

	write(t, dir, "go.mod", []byte("module example.com/other\n\ngo 1.26\n"))
	_, err = Load(t.Context(), "", Test)
	assert.NoError(t, err)
}

func TestFlagsOfTheGoCommandDontMatter(t *testing.T) {
	for _, flags := range []string{"-mod=mod", "-mod=vendor", "-mod=readonly"} {
		t.Setenv("GOFLAGS", flags)
		dir, err := listModule(t.Context())
		require.NoError(t, err, flags)
		assert.DirExists(t, filepath.Join(dir, "data"))
	}
}

func TestModuleVersion(t *testing.T) {
	info := func(m debug.Module) *debug.BuildInfo { return &debug.BuildInfo{Deps: []*debug.Module{&m}} }
	folder := t.TempDir()
	for name, c := range map[string]struct {
		info          *debug.BuildInfo
		path, version string
	}{
		"unknown":     {nil, dataModule, dataVersion},
		"not in it":   {info(debug.Module{Path: "example.com/x", Version: "v1.0.0"}), dataModule, dataVersion},
		"known":       {info(debug.Module{Path: dataModule, Version: "v1.2.3"}), dataModule, "v1.2.3"},
		"replaced":    {info(debug.Module{Path: dataModule, Replace: &debug.Module{Path: "example.com/Y", Version: "v2.0.0"}}), "example.com/Y", "v2.0.0"},
		"in a folder": {info(debug.Module{Path: dataModule, Replace: &debug.Module{Path: folder}}), folder, ""},
	} {
		path, version := moduleVersion(c.info, c.info != nil)
		assert.Equal(t, c.path, path, name)
		assert.Equal(t, c.version, version, name)
	}
	assert.Equal(t, "github.com/petar/!go!m!n!i!s!t", escapePath(dataModule))
}
