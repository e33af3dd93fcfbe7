package ptx

import (
	"io/fs"
	"os"
	"regexp"
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

func TestFind(t *testing.T) {
	names, err := fs.Glob(ptxfiles.Tensor, "*.ptx")
	require.NoError(t, err)
	kernels := 0
	for _, name := range names {
		text, err := fs.ReadFile(ptxfiles.Tensor, name)
		require.NoError(t, err)
		found := regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\($`).FindAllSubmatch(text, -1)
		require.NotEmpty(t, found, name)
		for _, k := range found {
			image := Find(string(k[1]))
			require.NotNil(t, image, "%s", k[1])
			assert.Equal(t, name, image.Name)
			assert.Equal(t, text, image.PTX)
		}
		kernels += len(found)
	}
	assert.Len(t, index(), kernels, "no name twice, and nothing else")
	assert.Nil(t, Find("nowhere"))
}

// TestStepsReadTheirArgumentsInPlace: a pointer to an argument makes each thread copy all 4 KiB of
// them to local memory, which is five times slower.
func TestStepsReadTheirArgumentsInPlace(t *testing.T) {
	for _, name := range []string{"adam_f32", "clip_f32"} {
		assert.NotContains(t, string(Find(name).PTX), ".local", name)
	}
}
