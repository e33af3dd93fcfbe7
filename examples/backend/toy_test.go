package toy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/backendtest"
)

func TestBackend(t *testing.T) {
	backendtest.Run(t, func() (*tensor.Runtime, error) { return tensor.Open("host", tensor.Backend("toy")) })
}

// TestNewest: a registered backend has precedence over the module's own.
func TestNewest(t *testing.T) {
	rt, err := tensor.Open("host")
	require.NoError(t, err)
	defer func() { require.NoError(t, rt.Close()) }()
	x, err := rt.Zeros(t.Context(), tensor.Float32, 3)
	require.NoError(t, err)
	_, err = rt.Sin(t.Context(), x)
	require.ErrorIs(t, err, tensor.ErrUnsupported)
	require.ErrorContains(t, err, "sin")
	require.NoError(t, x.Release())
}

// TestGuide: the guide shows this code.
func TestGuide(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guide/backend.md")
	require.NoError(t, err)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var code strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		code.Write(text)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(guide, -1)
	require.Len(t, blocks, 5)
	for _, b := range blocks[1:] { // the first one is of a program
		for _, declaration := range strings.Split(strings.TrimSpace(string(b[1])), "\n\n") {
			require.Contains(t, code.String(), declaration)
		}
	}
}
