package ptx

import (
	"bytes"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/ptxfiles"
)

func TestMain(m *testing.M) {
	if !Embedded() {
		ptxfiles.Tensor = os.DirFS(".")
	}
	os.Exit(m.Run())
}

// TestFind: each kernel of each file is found, with the file's fatbin. Its PTX is the file's PTX
// without the other kernels.
func TestFind(t *testing.T) {
	names, err := fs.Glob(ptxfiles.Tensor, "*.ptx")
	require.NoError(t, err)
	kernels := 0
	for _, name := range names {
		text, err := fs.ReadFile(ptxfiles.Tensor, name)
		require.NoError(t, err)
		compiled, err := fs.ReadFile(ptxfiles.Tensor, strings.TrimSuffix(name, "ptx")+"fatbin")
		require.NoError(t, err)
		found := regexp.MustCompile(`(?s)\n\.visible \.entry (\w+)\(\n.*?\n}`).FindAllSubmatch(text, -1)
		require.NotEmpty(t, found, name)
		for _, k := range found {
			image := Find(string(k[1]))
			require.NotNil(t, image, "%s", k[1])
			assert.Equal(t, name, image.Name+".ptx")
			assert.True(t, bytes.Equal(compiled, image.Compiled()), name)
			want := bytes.Clone(text)
			for _, other := range found {
				if string(other[1]) != string(k[1]) {
					want = bytes.Replace(want, other[0], nil, 1)
				}
			}
			got := image.PTX(string(k[1]))
			assert.Equal(t, 1, bytes.Count(got, []byte(".entry")), "%s", k[1])
			assert.True(t, bytes.Equal(want, got), "%s", k[1])
		}
		kernels += len(found)
	}
	assert.Len(t, index(), kernels, "no name twice, and nothing else")
	assert.Nil(t, Find("nowhere"))
	assert.Nil(t, (&Image{Name: "nothing"}).Compiled())
	assert.Nil(t, (&Image{Name: "nothing", Files: ptxfiles.Tensor}).Compiled())
}

// TestStepsReadTheirArgumentsInPlace: taking a pointer to an argument would make each thread copy
// all 4 KiB of arguments to local memory, which is five times slower.
func TestStepsReadTheirArgumentsInPlace(t *testing.T) {
	for _, name := range []string{"adam_f32", "clip_f32"} {
		assert.NotContains(t, string(Find(name).PTX(name)), ".local", name)
	}
}
