package dry

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the names of the kernels")

var named = regexp.MustCompile(`(?m)^(\.target sm_\d+|\.visible \.entry \w+\()$`)

func TestKernels(t *testing.T) {
	files, err := filepath.Glob("../../tensor/internal/ptx/*.ptx")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	ours, err := filepath.Glob("kernels/*.ptx")
	require.NoError(t, err)
	if !*update {
		require.Len(t, ours, len(files), "run the test with -update")
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		want := "// Names alone; see kernels.go.\n" + strings.Join(named.FindAllString(string(text), -1), "\n") + "\n"
		require.Contains(t, want, ".entry", file)
		copied := filepath.Join("kernels", filepath.Base(file))
		if *update {
			require.NoError(t, os.WriteFile(copied, []byte(want), 0o644))
		}
		have, err := os.ReadFile(copied)
		require.NoError(t, err)
		assert.Equal(t, want, string(have), "run the test with -update")
	}
}
